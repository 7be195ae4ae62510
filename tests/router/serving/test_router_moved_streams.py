"""Streams that the cluster moves off a replica that is to prefill: the text goes on, whatever fails meanwhile."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from contracts import wire
from contracts.errors import ErrorInfo
from contracts.phase import Role
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason

PLANNER = {"enabled": True, "every_s": 1e6}
LOST_KV = ErrorInfo(status=503, code="kv_handoff_failed", message="the link was cut")
FULL = ErrorInfo(status=429, code="overloaded", message="full")
WORDS = "Hello world, the quick brown fox jumps over the lazy dog."


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


@pytest.fixture
async def fleet(start_router: Any, pools: Any) -> tuple[Any, Any, Any]:
    """A router whose planner is on, a replica that is still mixed, and a decode replica that it could hand over to."""
    p, d = await pools("pd")
    p.role = Role.MIXED
    for each in (p, d):
        each.say(WORDS)
        each.pace_s = 0.01
    router = await start_router(p, d, cluster={"planner": PLANNER}, tick_s=0.02)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)
    return router, p, d


async def to_prefill(router: Any, p: Any) -> None:
    """Once the stream has some tokens its replica is to prefill from now on, and guards what it has."""
    (flight,) = router.fleet._flights
    await until(lambda: flight.tokens_sent > 2)
    told = p.view
    p.view = lambda: msgspec.structs.replace(told(), guarded=sum("~" not in name for name in p.alive))
    answer = await router.http.post(f"/fleet/replicas/{p.identity.replica_id}/role", json={"role": "prefill"})
    assert answer.status_code == 202, answer.text


async def read(router: Any, body: dict[str, Any], after_first: Any, path: str = "chat/completions") -> bytes:
    """The whole stream; `after_first` is awaited once its first bytes are there."""
    received = b""
    async with router.http.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as answer:
        assert answer.status_code == 200
        async for part in answer.aiter_bytes():
            if not received:
                await after_first()
            received += part
    return received


def counters(router: Any) -> Any:
    return router.fleet.core.snapshot(0).counters


@pytest.mark.parametrize(
    "fields",
    [{}, {"logprobs": True, "top_logprobs": 1}, {"stop": ["lazy"]}, {"stop": ["dog", "over the"]}, {"max_tokens": 12}],
)
async def test_the_text_goes_on(fleet: Any, chat: Any, stream_ok: Any, fields: dict[str, Any]) -> None:
    router, p, d = fleet
    whole = stream_ok(await read(router, chat(**{"max_tokens": 300, **fields}), lambda: asyncio.sleep(0)))
    assert p.submits
    assert not d.submits
    body = await read(router, chat(**{"max_tokens": 300, **fields}), lambda: to_prefill(router, p))
    assert stream_ok(body) == whole
    (taken,) = d.submits
    (given,) = (request for request in p.submits if request.output_token_ids)
    assert taken.request_id == given.request_id == p.submits[1].request_id + "~2"
    assert len(taken.output_token_ids) > 2
    assert taken.output_token_ids == given.output_token_ids == tuple(p.reply(given)[: len(given.output_token_ids)])
    assert p.submits[1].request_id in p.cancelled
    assert counters(router).moved == 1
    assert "streams_moved" in {decision.kind for decision in router.fleet.core.fleet_decisions()}
    metrics = router.app.state.served.metrics.text()
    assert b"phaseserve_continuations_total 1.0" in metrics
    assert b"phaseserve_malformed_messages_total 0.0" in metrics
    await router.wait_idle(p, d)


@pytest.mark.parametrize("late", ["same", "other", "end", "error", "cancelled", "refused"])
async def test_late_words_of_where_it_was(fleet: Any, chat: Any, stream_ok: Any, late: str) -> None:
    """What comes from there after the move, right or wrong, is neither shown nor believed; nor is anything lost."""
    router, p, d = fleet
    d.may_receive.clear()

    async def move_then_speak() -> None:
        await to_prefill(router, p)
        await until(lambda: d.submits)
        name, sent = p.submits[0].request_id, len(d.submits[0].output_token_ids)
        rest = tuple(p.reply(p.submits[0])[sent:])
        says: dict[str, Any] = {
            "same": {"token_ids": rest[:2], "first_index": sent},
            "other": {"token_ids": (rest[0] + 1,), "first_index": sent},
            "end": {"token_ids": rest, "first_index": sent, "finish": FinishReason.LENGTH},
            "error": {"finish": FinishReason.ERROR, "error": FULL},
            "cancelled": {"finish": FinishReason.CANCELLED},
        }
        if late == "refused":
            await p.tell(wire.Refused(request_id=name, error=FULL))
        else:
            await p.tell(wire.Outputs(outputs=(SequenceOutput(request_id=name, **says[late]),)))
        await asyncio.sleep(0.05)
        d.may_receive.set()

    assert stream_ok(await read(router, chat(max_tokens=300), move_then_speak)) == {0: WORDS}
    assert len(d.submits) == 1
    await router.wait_idle(p, d)


async def test_what_was_cached_is_what_was_cached_at_first(fleet: Any, chat: Any) -> None:
    """The continuation finds the blocks that its own beginning computed: no gift to the client."""
    router, p, d = fleet
    p.cached_tokens = 2

    async def move() -> None:
        p.cached_tokens = d.cached_tokens = 999
        await to_prefill(router, p)

    body = await read(router, chat(max_tokens=300, stream_options={"include_usage": True}), move)
    usage = msgspec.json.decode(body.split(b"data: ")[-2])["usage"]
    assert usage["prompt_tokens_details"] == {"cached_tokens": 2}
    assert usage["completion_tokens"] == len(p.reply(None)) + 1, "with the end token"
    assert len(d.submits) == 1


@pytest.mark.parametrize("failure", [LOST_KV, FULL, "the decode replica dies", "its replica dies"])
async def test_a_move_that_fails(fleet: Any, chat: Any, stream_ok: Any, failure: Any) -> None:
    router, p, d = fleet
    if isinstance(failure, str):
        d.may_receive.clear()
    elif failure is LOST_KV:
        d.fail_receive = failure
    else:
        refusals = [failure, failure]
        d.refuses = lambda request: refusals.pop() if refusals else None

    async def move() -> None:
        await to_prefill(router, p)
        if isinstance(failure, str):
            await until(lambda: d.submits)
            await (p if failure.startswith("its") else d).close()
            d.may_receive.set()

    assert stream_ok(await read(router, chat(max_tokens=300), move)) == {0: WORDS}
    assert counters(router).moved == 1
    await router.wait_idle(*(() if isinstance(failure, str) else (p, d)))


@pytest.mark.parametrize("step", ["before the reservation", "before the KV"])
async def test_the_client_leaves_in_the_middle_of_it(fleet: Any, chat: Any, step: str) -> None:
    router, p, d = fleet
    (d.may_reserve if step == "before the reservation" else d.may_receive).clear()

    async def move() -> None:
        await to_prefill(router, p)
        await until(lambda: d.submits)
        raise ConnectionAbortedError

    with pytest.raises(ConnectionAbortedError):
        await read(router, chat(max_tokens=300), move)
    await router.wait_idle(p, d)
    assert d.submits[0].request_id in d.cancelled
    assert router.fleet._flights._by_sequence == {}
    assert counters(router).cancelled == 1


async def test_several_sequences_of_one_prompt_stay_where_they_are(fleet: Any, chat: Any, stream_ok: Any) -> None:
    router, p, d = fleet
    body = await read(router, chat(max_tokens=300, n=2), lambda: to_prefill(router, p))
    assert stream_ok(body, choices=2) == {0: WORDS, 1: WORDS}
    assert not d.submits
