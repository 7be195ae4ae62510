"""Replicas come, refuse, fall silent, break and come back; every request still ends exactly once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from contracts import wire
from contracts.errors import ErrorInfo
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason

FULL = ErrorInfo(status=429, code="overloaded", message="no room", retry_after_s=1.0)


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


def ids_of(replica: Any) -> set[str]:
    return {request.request_id for request in replica.submits}


async def test_a_refused_request_goes_to_another_replica(start_router: Any, two_replicas: Any, chat: Any) -> None:
    first, second = two_replicas
    first.refuse_with = FULL
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)
    for _ in range(4):
        answer = await router.http.post("/v1/chat/completions", json=chat())
        assert answer.status_code == 200
        assert answer.headers["x-phaseserve-replica"] == "r1"
    assert len(second.submits) == 4
    assert {request.request_id for request in first.submits}.isdisjoint(
        request.request_id for request in second.submits
    )


async def test_a_refusal_everywhere_is_the_clients_answer(router: Any, replica: Any, chat: Any) -> None:
    replica.refuse_with = ErrorInfo(status=400, code="invalid_request", message="too long for me", param="prompt")
    answer = await router.http.post("/v1/chat/completions", json=chat(n=2))
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "too long for me"
    assert router.fleet.num_flights == 0


@pytest.mark.parametrize("finish", [FinishReason.CANCELLED, FinishReason.ERROR, None])
async def test_a_waiting_client_is_never_told_that_it_left(
    router: Any, gated: Any, chat: Any, finish: FinishReason | None
) -> None:
    gone = ErrorInfo(status=499, code="cancelled", message="the client is gone")
    answer = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat()))
    ended = 0
    while not answer.done():
        await until(lambda seen=ended: answer.done() or len(gated.submits) > seen)
        for request in gated.submits[ended:]:
            ended += 1
            if finish is None:
                await gated.tell(wire.Refused(request_id=request.request_id, error=gone))
            else:
                output = SequenceOutput(request_id=request.request_id, finish=finish, error=gone)
                await gated.tell(wire.Outputs(outputs=(output,)))
    assert ended > 0
    assert answer.result().status_code == 503
    assert "gave the request up" in answer.result().json()["error"]["message"]


async def test_silence_moves_requests_that_have_no_token_yet(start_router: Any, two_replicas: Any, chat: Any) -> None:
    first, second = two_replicas
    router = await start_router(*two_replicas, heartbeat_s=0.05, silence_s=0.3)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)
    first.gate.clear()
    second.gate.clear()
    answers = [asyncio.create_task(router.http.post("/v1/chat/completions", json=chat())) for _ in range(4)]
    await until(lambda: len(first.alive) + len(second.alive) == 4)
    first.silent = True
    second.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*answers)] == [200] * 4
    assert {request.request_id for request in first.submits}.isdisjoint(
        request.request_id for request in second.submits
    )
    assert router.fleet.not_ready() is None
    first.silent = False
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)


async def test_silence_ends_a_stream_with_an_error(start_router: Any, replica: Any, chat: Any) -> None:
    router = await start_router(replica, heartbeat_s=0.05, silence_s=0.3)
    replica.pace_s = 0.02
    async with router.http.stream("POST", "/v1/chat/completions", json=chat(stream=True, ignore_eos=True)) as answer:
        body = b""
        async for part in answer.aiter_bytes():
            body += part
            replica.silent = True
            replica.gate.clear()
    assert b'"code":"unavailable"' in body
    assert body.endswith(b"data: [DONE]\n\n")
    assert router.fleet.num_flights == 0
    ready = await router.http.get("/health/ready")
    assert ready.status_code == 503
    assert "silent" in ready.json()["reason"]
    refused = await router.http.post("/v1/chat/completions", json=chat())
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    replica.silent = False
    replica.gate.set()
    await until(lambda: router.fleet.not_ready() is None)
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_goodbye_and_a_new_process_under_the_same_name(router: Any, replica: Any, chat: Any) -> None:
    replica.gate.clear()
    asked = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat()))
    await until(lambda: replica.alive)
    replica.identity = msgspec.structs.replace(replica.identity, incarnation="i2")
    await replica.tell(wire.Goodbye(reason="restarting"))
    answer = await asked
    assert answer.status_code == 503
    assert "restarting" in answer.json()["error"]["message"]
    replica.gate.set()
    await until(lambda: router.fleet.not_ready() is None)
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200


@pytest.mark.parametrize(
    ("change", "told"),
    [({"digest": "other"}, "it serves tiny"), ({"vocab_size": 7}, "7 tokens")],
)
async def test_a_replica_with_another_model_is_refused(
    start_router: Any, replica: Any, chat: Any, change: dict[str, Any], told: str
) -> None:
    model = msgspec.structs.replace(replica.identity.model, **change)
    replica.identity = msgspec.structs.replace(replica.identity, model=model)
    router = await start_router(replica, ready=False)
    await until(lambda: told in (router.fleet.not_ready() or ""))
    ready = await router.http.get("/health/ready")
    assert ready.status_code == 503
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 503


async def test_a_replica_that_holds_less_context_lowers_the_limit(start_router: Any, replica: Any) -> None:
    model = msgspec.structs.replace(replica.identity.model, max_context=64)
    replica.identity = msgspec.structs.replace(replica.identity, model=model)
    router = await start_router(replica)
    assert (await router.http.get("/v1/models")).json()["data"][0]["max_model_len"] == 64
    answer = await router.http.post("/v1/completions", json={"model": "tiny", "prompt": [5] * 64})
    assert answer.status_code == 400
    assert "64" in answer.json()["error"]["message"]


async def test_two_endpoints_with_one_name(start_router: Any, two_replicas: Any, chat: Any) -> None:
    first, second = two_replicas
    second.identity = msgspec.structs.replace(second.identity, replica_id="r0")
    router = await start_router(*two_replicas)
    await until(lambda: any("already is replica r0" in link.why_not for link in router.fleet.links))
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200
    assert min(len(first.submits), len(second.submits)) == 0


async def test_messages_that_do_not_decode_are_counted_and_harmless(router: Any, replica: Any, chat: Any) -> None:
    await replica.tell_raw(b"\xc1 not a message")
    await until(lambda: b"phaseserve_malformed_messages_total 1.0" in router.app.state.served.metrics.text())
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200


async def test_late_output_of_another_placement_is_ignored(router: Any, replica: Any, chat: Any) -> None:
    from contracts.replica_io import SequenceOutput

    replica.gate.clear()
    asked = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat()))
    await until(lambda: replica.alive)
    await replica.tell(wire.Outputs(outputs=(SequenceOutput(request_id="chatcmpl-unknown", token_ids=(5,)),)))
    replica.gate.set()
    assert (await asked).json()["choices"][0]["message"]["content"] == "Hello world"


async def test_readiness_follows_the_replica(start_router: Any, replica: Any) -> None:
    replica.silent = True
    router = await start_router(replica, ready=False)
    assert (await router.http.get("/health/live")).status_code == 200
    assert (await router.http.get("/health/ready")).status_code == 503
    replica.silent = False
    await router.wait_ready()
    assert (await router.http.get("/health/ready")).json() == {"status": "ready"}


async def test_a_stuck_step_makes_the_router_not_ready(start_router: Any, replica: Any) -> None:
    """Heartbeats alone prove nothing: the process is alive, its engine is not (vLLM issue 39863)."""
    router = await start_router(replica)
    replica.step_age_s = 1000.0
    await until(lambda: router.fleet.not_ready() is not None)
    assert "step" in (await router.http.get("/health/ready")).json()["reason"]
    replica.step_age_s = 0.0
    await router.wait_ready()


async def test_decisions_tell_plan_and_outcome(router: Any, chat: Any) -> None:
    for words in ("a", "b", "c"):
        await router.http.post("/v1/chat/completions", json=chat(words), headers={"x-request-id": words})
    decisions = (await router.http.get("/decisions?limit=2")).json()["decisions"]
    assert [decision["request_id"] for decision in decisions] == ["chatcmpl-c", "chatcmpl-b"]
    assert decisions[0]["plan"]["reason"]
    assert decisions[0]["outcome"]["finish"] == "stop"
    assert decisions[0]["outcome"]["ttft_s"] > 0
