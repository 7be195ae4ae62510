"""A router that dies in the middle of changing roles: the next one finds the roles as they are, and replicas empty."""

from __future__ import annotations

import asyncio
import random
import signal
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

COST = {"a0": 0.002, "a1": 5e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 2e-4}
FAKE = {"cost": COST, "vocab_size": 400, "max_context": 2048, "num_blocks": 512}
SECRET = {"secret": "the secret of this fleet", "host": "127.0.0.1"}
ROLES = ("alternating", "mixed", "prefill", "decode")


async def asked(router: Any, number: int) -> httpx.Response:
    messages = [{"role": "user", "content": f"question {number} " * (number % 7 + 1)}]
    body = {"model": "tiny", "messages": messages, "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    answer: httpx.Response = await router.http.post("/v1/chat/completions", json=body)
    return answer


async def text_of(router: Any, number: int) -> str:
    answer = await asked(router, number)
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


@pytest.mark.parametrize("seed", range(2))
async def test_a_router_that_is_killed_while_roles_change(start_replica: Any, start_router: Any, seed: int) -> None:
    choice = random.Random(seed)
    replicas = [await start_replica(fake=FAKE, transfer=SECRET, roles_may_change=True) for _ in range(3)]
    router = await start_router(*replicas)
    want = [await text_of(router, number) for number in range(8)]
    for _ in range(3):
        running = [asyncio.create_task(asked(router, number)) for number in range(8)]
        await asyncio.sleep(0.05)
        for replica_id in ("r0", "r1", "r2"):
            wish = {"role": choice.choice(ROLES)}
            answer = await router.http.post(f"/fleet/replicas/{replica_id}/role", json=wish)
            assert answer.status_code == 202, answer.text
        router.popen.send_signal(signal.SIGKILL)
        await asyncio.gather(*running, return_exceptions=True)
        router = await start_router(*replicas)
        await router.wait_nothing_left(20.0)
        assert {view["role"] for view in (await router.fleet()).values()} <= set(ROLES)
        assert await asyncio.gather(*(text_of(router, number) for number in range(8))) == want
    await router.wait_nothing_left()
    assert all(view["guarded"] == 0 for view in (await router.fleet()).values())
