"""A real router process over real replica processes with a fake engine: ends, losses and leavings."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

VOCAB = 400
CONTEXT = 2048
STEP = {"a0": 0.005, "a1": 1e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}


def fake(**changes: Any) -> dict[str, Any]:
    return {"fake": {"cost": STEP, "vocab_size": VOCAB, "max_context": CONTEXT, "num_blocks": 512, **changes}}


def body(words: str = "hi", **fields: Any) -> dict[str, Any]:
    given = {"max_tokens": 60, "ignore_eos": True, **fields}
    return {"model": "tiny", "messages": [{"role": "user", "content": words}], **given}


async def streamed(router: Any, fields: dict[str, Any], began: asyncio.Event | None = None) -> bytes:
    async with router.http.stream("POST", "/v1/chat/completions", json={**fields, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        received = b""
        async for part in answer.aiter_bytes():
            received += part
            if began is not None:
                began.set()
        return received


async def test_k8s_7_a_drain_lets_streams_end_and_exits_with_zero(start_replica: Any, start_router: Any) -> None:
    router = await start_router(await start_replica(**fake()))
    began = [asyncio.Event() for _ in range(5)]
    streams = [asyncio.create_task(streamed(router, body(f"say {i}"), event)) for i, event in enumerate(began)]
    for event in began:
        await asyncio.wait_for(event.wait(), 20)
    router.popen.send_signal(signal.SIGTERM)
    for received in await asyncio.gather(*streams):
        assert received.endswith(b"data: [DONE]\n\n")
        assert received.count(b'"finish_reason":"length"') == 1
        assert b'"error"' not in received
    assert await router.exit_code() == 0
    with pytest.raises(httpx.TransportError):
        await router.http.get("/health/live")


async def test_kill_of_a_replica_ends_its_streams_and_moves_what_has_no_token(
    start_replica: Any, start_router: Any
) -> None:
    replicas = [await start_replica(**fake()) for _ in range(2)]
    router = await start_router(*replicas)
    answers = [asyncio.create_task(router.http.post("/v1/chat/completions", json=body(f"go {i}"))) for i in range(8)]
    await router.wait_fleet(lambda views: views["r0"]["running"] > 0)
    replicas[0].signal(signal.SIGKILL)
    statuses = [answer.status_code for answer in await asyncio.gather(*answers)]
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    after = await asyncio.gather(*(router.http.post("/v1/chat/completions", json=body()) for _ in range(5)))
    assert [answer.status_code for answer in after] == [200] * 5
    assert {answer.headers["x-phaseserve-replica"] for answer in after} == {"r1"}
    await router.wait_nothing_left()


async def test_rtr_4_a_frozen_replica_is_not_ready_and_comes_back(start_replica: Any, start_router: Any) -> None:
    replica = await start_replica(**fake())
    router = await start_router(replica, settings=("router.silence_s=1",))
    replica.signal(signal.SIGSTOP)
    try:
        await router.wait(wanted=False, deadline_s=10)
        refused = await router.http.post("/v1/chat/completions", json=body())
        assert refused.status_code == 503
        assert (await router.http.get("/health/live")).status_code == 200
    finally:
        replica.signal(signal.SIGCONT)
    await router.wait()
    assert (await router.http.post("/v1/chat/completions", json=body())).status_code == 200
    await router.wait_nothing_left()


async def test_can_1_2_4_rtr_1_clients_that_leave_leave_nothing_behind(start_replica: Any, start_router: Any) -> None:
    slow_prefill = {**STEP, "a1": 0.002}
    replica = await start_replica(**fake(cost=slow_prefill))
    router = await start_router(replica)

    async def leave_after(fields: dict[str, Any], wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await router.http.post("/v1/chat/completions", json=fields)

    long = "word1 " * 500
    leaving = [leave_after(body(long, stream=i % 2 == 0, max_tokens=500), 0.3 + 0.02 * i) for i in range(10)]
    leaving += [leave_after(body(max_tokens=900, stream=i % 2 == 0), 0.5) for i in range(10)]
    await asyncio.gather(*leaving)
    began = time.monotonic()
    answer = await router.http.post("/v1/chat/completions", json=body(max_tokens=1))
    assert answer.status_code == 200
    prefills_s = 10 * 1000 * slow_prefill["a1"]
    assert time.monotonic() - began < prefills_s / 2
    await router.wait_nothing_left()
    assert [(await router.http.post("/v1/chat/completions", json=body())).status_code for _ in range(3)] == [200] * 3


async def test_k8s_4_a_draining_replica_fails_no_request(start_replica: Any, start_router: Any) -> None:
    replicas = [await start_replica(**fake()) for _ in range(2)]
    router = await start_router(*replicas)
    streams = [asyncio.create_task(streamed(router, body(f"go {i}", max_tokens=80))) for i in range(8)]
    await router.wait_fleet(lambda views: views["r0"]["running"] > 0)
    replicas[0].signal(signal.SIGTERM)
    more = [asyncio.create_task(streamed(router, body(f"more {i}"))) for i in range(8)]
    for received in await asyncio.gather(*streams, *more):
        assert received.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in received
    assert await replicas[0].wait_exit() == 0
    assert (await router.http.post("/v1/chat/completions", json=body())).status_code == 200


async def test_what_cannot_be_served_is_refused_before_a_port_opens(start_router: Any, tmp_path: Path) -> None:
    missing = await start_router(model=tmp_path / "nothing", ready=False)
    assert await missing.exit_code() not in {0, None}
    assert "no such model" in missing.log_path.read_text()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = await start_router(port=taken.getsockname()[1], ready=False)
        assert await busy.exit_code() not in {0, None}
        assert "cannot listen" in busy.log_path.read_text()
