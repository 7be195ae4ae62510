"""Real prefill and decode replicas behind a real router: KV moves, text is the same, and any replica may be killed."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.system

COST = {"a0": 0.005, "a1": 1e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
TRANSFER = {"secret": "only-for-this-test", "host": "127.0.0.1"}
PAIR = {"phaseserve": {"layout": "disaggregated", "on_unavailable": "fail"}}
PROMPTS = [[5 + i] * length for i, length in enumerate((1, 15, 16, 17, 200, 700))]


def fake(role: str) -> dict[str, Any]:
    return {
        "role": role,
        "fake": {"cost": COST, "vocab_size": 400, "max_context": 2048, "num_blocks": 512},
        "transfer": TRANSFER,
    }


def body(prompt: list[int], **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": prompt, "max_tokens": 20, "temperature": 0, **fields}


async def answers(router: Any, **fields: Any) -> list[tuple[int, str]]:
    asked = [router.http.post("/v1/completions", json=body(prompt, **fields)) for prompt in PROMPTS]
    got = await asyncio.gather(*asked)
    return [(answer.status_code, answer.json()["choices"][0]["text"] if answer.is_success else "") for answer in got]


async def test_the_text_of_a_pair_is_that_of_one_replica(start_replica: Any, start_router: Any) -> None:
    one = await start_router(await start_replica(**fake("mixed")))
    p, d = await start_replica(**fake("prefill")), await start_replica(**fake("decode"))
    pair = await start_router(p, d)
    assert await answers(pair, **PAIR) == await answers(one)
    decisions = (await pair.http.get("/decisions")).json()["decisions"]
    assert {decision["plan"]["layout"] for decision in decisions} == {"disaggregated"}
    assert all(decision["outcome"]["handoff"]["num_bytes"] > 0 for decision in decisions)
    views = await pair.fleet()
    computed = {view["role"]: view["prompt_tokens_computed"] for view in views.values()}
    assert computed == {"prefill": sum(map(len, PROMPTS)), "decode": 0}
    await pair.wait_nothing_left()


@pytest.mark.parametrize("victim", ["prefill", "decode"])
async def test_streams_survive_any_replica(start_replica: Any, start_router: Any, victim: str) -> None:
    replicas = [await start_replica(**fake(role)) for role in ("prefill", "prefill", "decode", "decode")]
    router = await start_router(*replicas)
    wished = {"phaseserve": {"layout": "disaggregated", "on_unavailable": "colocate"}}
    whole = await answers(router, max_tokens=300, ignore_eos=True, **wished)
    running = asyncio.create_task(answers(router, max_tokens=300, ignore_eos=True, **wished))
    await router.wait_fleet(lambda views: sum(view["running"] for view in views.values()) >= 2)
    replicas[0 if victim == "prefill" else 2].signal(signal.SIGKILL)
    assert await asyncio.wait_for(running, 60) == whole
    assert {status for status, _ in whole} == {200}
    await router.wait_nothing_left()
