"""The shell between routers and core over real sockets: requests, refusals, cancels, drains, failures."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
import zmq

from contracts import wire
from contracts.replica_io import ClientGone, LeaseGranted, LeaseRevoked, RequestArrived, SequenceOutput
from contracts.request import FinishReason


async def test_a_request_streams_and_ends_once(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.submit("a", max_tokens=5)
    end = await router.wait_end("a")
    assert end.finish is FinishReason.LENGTH
    assert router.tokens("a") == [3, 4, 5, 6, 7]
    await router.wait_view(lambda view: view.running == 0 and view.free_blocks == view.num_blocks)


async def test_welcome_names_the_replica_and_is_repeated(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.submit("a", max_tokens=400)
    await router.wait_outputs("a", 1)
    welcome = await router.hello()
    assert welcome.identity.replica_id == "r0"
    assert welcome.view.running == 1
    await router.send(wire.Cancel(request_ids=("a",)))
    assert (await router.wait_end("a")).finish is FinishReason.CANCELLED


async def test_two_routers_may_use_the_same_request_id(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    first, second = await connect_router(live.endpoint), await connect_router(live.endpoint)
    await first.submit("same", prompt=range(3), max_tokens=4)
    await second.submit("same", prompt=range(30), max_tokens=4)
    await first.wait_end("same")
    await second.wait_end("same")
    assert first.tokens("same") == [3, 4, 5, 6]
    assert second.tokens("same") == [30, 31, 32, 33]


async def test_a_request_id_in_use_is_refused_and_the_first_goes_on(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.submit("a", max_tokens=50)
    await router.submit("a", max_tokens=5)
    refused = await router.wait(wire.Refused)
    assert (refused.request_id, refused.error.status) == ("a", 400)
    await router.wait_end("a")
    assert len(router.tokens("a")) == 50
    await router.submit("b", "b", max_tokens=5)
    assert (await router.wait(wire.Refused)).request_id == "b"
    await router.submit("a", max_tokens=2)  # it ended, so the id is free again
    await router.wait_view(lambda view: view.running == 0 and view.steps_done > 50)
    assert len(router.tokens("a")) == 52


async def test_tokens_outside_the_vocabulary_never_reach_the_engine(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    for number, prompt in enumerate([(1, 100), (-1, 5)]):
        await router.submit(f"p{number}", prompt=prompt, max_tokens=5)
        assert (await router.wait(wire.Refused)).error.param == "prompt"
    await router.submit("b", max_tokens=5, logit_bias={100: 1.0})
    assert (await router.wait(wire.Refused)).error.param == "logit_bias"
    assert not any(isinstance(event, RequestArrived) for event in live.core.events)


async def test_sequences_of_one_submit_are_refused_together(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.submit(*[f"s{i}" for i in range(9)], max_tokens=50)
    refused = [await router.wait(wire.Refused) for _ in range(9)]
    assert {message.request_id for message in refused} == {f"s{i}" for i in range(9)}
    assert {message.error.status for message in refused} == {429}
    assert refused[0].error.retry_after_s == 1.0
    await router.wait_view(lambda view: view.running == 0)
    assert not any(isinstance(message, wire.Outputs) for message in router.heard)
    assert live.loop.routers.sessions.num_requests == 0


async def test_cancel_is_idempotent_and_ignores_unknown_ids(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    live.engine.hold.clear()
    await router.submit("running", max_tokens=50)
    await router.submit("waiting", max_tokens=50)
    await router.wait_view(lambda view: view.running == 2)
    for _ in range(2):
        await router.send(wire.Cancel(request_ids=("waiting", "running", "nobody")))
    assert (await router.wait_end("waiting")).finish is FinishReason.CANCELLED
    assert (await router.wait_end("running")).finish is FinishReason.CANCELLED
    live.engine.hold.set()
    await router.wait_view(lambda view: view.running == 0)
    assert sum(isinstance(event, ClientGone) for event in live.core.events) == 2


async def test_leases_reach_the_core(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.send(wire.Lease(duration_s=1.5))
    await router.send(wire.Lease(duration_s=0.0))
    await router.hello()
    leases = [event for event in live.core.events if isinstance(event, LeaseGranted | LeaseRevoked)]
    assert leases == [LeaseGranted(1.5), LeaseRevoked()]


async def test_a_failed_step_ends_only_its_own_batch(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    live.engine.hold.clear()
    await router.submit("a", max_tokens=5)
    await router.wait_view(lambda view: view.running == 1)
    await router.submit("later", max_tokens=5)
    await router.wait_view(lambda view: view.running == 2)
    live.engine.fail_next = True
    live.engine.hold.set()
    assert (await router.wait_end("a")).finish is FinishReason.ERROR
    assert (await router.wait_end("later")).finish is FinishReason.LENGTH
    assert live.core.failed == 1


async def test_an_engine_that_fails_every_step_ends_the_process(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(max_failed_steps=3)
    live.engine.fail_always = True
    router = await connect_router(live.endpoint)
    for request_id in "abc":
        await router.submit(request_id, max_tokens=5)
        assert (await router.wait_end(request_id)).finish is FinishReason.ERROR
    assert "3 engine steps failed" in (await router.wait(wire.Goodbye)).reason
    with pytest.raises(ExceptionGroup):
        await live.ended()


async def test_what_does_not_decode_is_counted_and_dropped(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    for frame in (b"", b"\xff", b"\x00" * 1000, b"\x81\xa4type\xa5Hullo"):
        await router.socket.send(frame)
    await router.socket.send_multipart([b"", b"two frames"])
    await router.submit("a", max_tokens=2)
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    assert live.loop.routers.counters.bad_messages == 4
    assert live.loop.routers.channel.malformed == 1


async def test_strangers_are_told_to_say_hello(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint, hello=False)
    await router.submit("a", max_tokens=2)
    assert (await router.wait(wire.Refused)).error.status == 503
    assert "hello" in (await router.wait(wire.Goodbye)).reason
    await router.send(wire.Hello(router_id="old", protocol=99))
    assert "99" in (await router.wait(wire.Goodbye)).reason
    assert not any(isinstance(event, RequestArrived) for event in live.core.events)


async def test_routers_are_bounded(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(max_routers=1)
    await connect_router(live.endpoint)
    second = await connect_router(live.endpoint, hello=False)
    await second.send(wire.Hello(router_id="second"))
    assert "too many" in (await second.wait(wire.Goodbye)).reason


async def test_a_silent_router_loses_its_requests(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(router_silence_s=0.4)
    silent, lively = await connect_router(live.endpoint), await connect_router(live.endpoint)
    await silent.submit("s", max_tokens=100_000)
    await lively.submit("l", max_tokens=100_000)
    await silent.wait_outputs("s", 1)
    for nonce in range(10):
        await lively.send(wire.Ping(nonce=nonce))
        await asyncio.sleep(0.1)
    assert "silent" in (await silent.wait(wire.Goodbye)).reason
    ends = [output.finish for output in silent.outputs("s") if output.finish is not None]
    assert ends == []  # its clients have not left: they hear of a lost replica, or are placed on another
    view = await lively.wait_view(lambda view: view.running == 1)
    assert view.free_blocks == view.num_blocks - 1
    assert live.loop.routers.counters.silent == 1
    await silent.hello()  # it may come back
    await silent.submit("s", max_tokens=1)


async def test_a_router_that_vanishes_loses_its_requests(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    gone, stays = await connect_router(live.endpoint), await connect_router(live.endpoint)
    await gone.submit("g", max_tokens=100_000)
    await stays.wait_view(lambda view: view.running == 1)
    gone.socket.close(linger=0)
    await stays.wait_view(lambda view: view.running == 0)
    assert live.loop.routers.counters.gone == 1


async def test_a_router_that_does_not_read_loses_its_requests(start_shell: Any, connect_router: Any) -> None:
    live = start_shell(queued_messages=4, heartbeat_s=0.5)
    slow = await connect_router(live.endpoint, RCVHWM=1, RCVBUF=4096)
    other = await connect_router(live.endpoint)
    await slow.submit("s", max_tokens=100_000)
    await other.wait_view(lambda view: view.running == 1)
    session = next(s for s in live.loop.routers.sessions.all() if s.router_id == slow.router_id)
    big = wire.Outputs(outputs=(SequenceOutput(request_id="?", token_ids=tuple(range(100_000))),))
    for _ in range(200):
        live.loop.routers.send(session, big)
        await asyncio.sleep(0)
        if live.loop.routers.counters.not_reading:
            break
    assert live.loop.routers.counters.not_reading == 1
    await other.wait_view(lambda view: view.running == 0)


async def test_a_router_on_a_new_connection_starts_afresh(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    before = await connect_router(live.endpoint, router_id="same")
    await before.submit("a", max_tokens=100_000)
    await before.wait_outputs("a", 1)
    after = await connect_router(live.endpoint, router_id="same")
    await after.submit("a", max_tokens=3)
    assert (await after.wait_end("a")).finish is FinishReason.LENGTH
    assert after.tokens("a") == [3, 4, 5]
    await after.wait_view(lambda view: view.running == 0)
    assert live.loop.routers.counters.replaced == 1


async def test_drain_finishes_what_runs_and_refuses_the_rest(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    await router.submit("a", max_tokens=60)
    await router.wait_outputs("a", 1)
    await router.send(wire.Drain())
    await router.wait_view(lambda view: view.draining)
    await router.submit("late", max_tokens=2)
    assert (await router.wait(wire.Refused)).error.status == 503
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    assert "drained" in (await router.wait(wire.Goodbye)).reason
    assert "drained" in await live.ended()


@pytest.mark.parametrize("how", ["deadline", "twice", "stop"])
async def test_an_end_before_the_drain_is_done_names_every_request(
    start_shell: Any, connect_router: Any, how: str
) -> None:
    live = start_shell(drain_deadline_s=0.2)
    router = await connect_router(live.endpoint)
    await router.submit("a", max_tokens=100_000)
    await router.wait_outputs("a", 1)
    if how == "stop":
        live.shutdown.stop("now")
    for _ in range({"deadline": 1, "twice": 2, "stop": 0}[how]):
        live.shutdown.drain("SIGTERM")
    end = await router.wait_end("a")
    assert end.error is not None
    assert end.error.status == 503
    await router.wait(wire.Goodbye)
    assert await live.ended()


async def test_an_overdue_step_refuses_new_work_and_a_hung_one_ends_the_process(
    start_shell: Any, connect_router: Any
) -> None:
    live = start_shell(step_overdue_s=0.1, step_deadline_s=1.0)
    router = await connect_router(live.endpoint)
    live.engine.hold.clear()
    await router.submit("a", max_tokens=5)
    await asyncio.sleep(0.3)
    await router.submit("late", max_tokens=5)
    assert (await router.wait(wire.Refused)).error.status == 503
    assert (await router.wait_end("a")).finish is FinishReason.ERROR
    assert "engine step" in (await router.wait(wire.Goodbye)).reason
    with pytest.raises(ExceptionGroup):
        await live.ended()


async def test_a_flood_does_not_stop_heartbeats(start_shell: Any, connect_router: Any) -> None:
    live = start_shell()
    router = await connect_router(live.endpoint)
    flooder = await connect_router(live.endpoint, SNDHWM=100_000)
    for _ in range(20_000):
        flooder.socket.send(wire.encode(wire.Ping(nonce=1)), flags=zmq.DONTWAIT)
    began = live.core.steps
    await router.submit("a", max_tokens=3)
    await router.wait_end("a")
    assert live.core.steps > began
