"""A replica whose process is killed: its host closes the connection, and the router need not wait for silence."""

from __future__ import annotations

import asyncio
import signal
import time
from typing import Any

import pytest

pytestmark = pytest.mark.system

COST = {"a0": 0.005, "a1": 1e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
SILENCE_S = 60.0
PATIENT = (f"router.silence_s={SILENCE_S:g}",)
"""No test would outlast this silence: what is seen earlier was seen by the end of the connection."""


def fake(**changes: Any) -> dict[str, Any]:
    return {"fake": {"cost": COST, "vocab_size": 400, "max_context": 2048, "num_blocks": 512, **changes}}


def body(words: str = "hi", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": words}]
    return {"model": "tiny", "messages": messages, "max_tokens": 20, "ignore_eos": True, **fields}


async def test_the_death_of_the_only_replica_is_seen_at_once(start_replica: Any, start_router: Any) -> None:
    replica = await start_replica(**fake())
    router = await start_router(replica, settings=PATIENT)
    running = asyncio.create_task(router.http.post("/v1/chat/completions", json=body(max_tokens=1500)))
    await router.wait_fleet(lambda views: views["r0"]["running"] > 0)
    killed_s = time.monotonic()
    replica.signal(signal.SIGKILL)
    await router.wait(wanted=False, deadline_s=10)
    assert (await running).status_code == 503
    refused = await router.http.post("/v1/chat/completions", json=body())
    assert refused.status_code == 503
    assert int(refused.headers["retry-after"]) >= 1
    assert time.monotonic() - killed_s < SILENCE_S / 4
    assert "it closed the connection" in router.log_path.read_text()


async def test_requests_without_a_token_move_at_once(start_replica: Any, start_router: Any) -> None:
    """A frozen replica gives no token to what is placed on it; then it is killed."""
    dying, other = [await start_replica(**fake()) for _ in range(2)]
    router = await start_router(dying, other, settings=PATIENT)
    dying.signal(signal.SIGSTOP)
    answers = [asyncio.create_task(router.http.post("/v1/chat/completions", json=body(f"go {i}"))) for i in range(8)]
    _, waiting = await asyncio.wait(answers, timeout=2)
    assert waiting
    dying.signal(signal.SIGKILL)
    ended = await asyncio.wait_for(asyncio.gather(*answers), SILENCE_S / 2)
    assert {answer.status_code for answer in ended} == {200}
    assert {answer.headers["x-phaseserve-replica"] for answer in ended} == {"r1"}
    await router.wait_nothing_left()


async def test_a_replica_that_is_started_again_is_used_again(start_replica: Any, start_router: Any) -> None:
    first = await start_replica(**fake())
    router = await start_router(first, settings=PATIENT)
    first.signal(signal.SIGKILL)
    await router.wait(wanted=False, deadline_s=10)
    await first.wait_exit()
    await start_replica(port=int(first.endpoint.rpartition(":")[2]), **fake())
    await router.wait()
    assert (await router.http.post("/v1/chat/completions", json=body())).status_code == 200
    await router.wait_nothing_left()
