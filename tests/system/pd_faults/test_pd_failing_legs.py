"""One leg fails: the other hears of it, nobody else does. Receivers that are replaced on their ports."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

POISON = 399
"""Feeding this token fails the sequence."""


@pytest.fixture(scope="module")
def strict(start_pools: Any) -> Iterator[Any]:
    """Failures are told, never mended."""
    cost = {"a0": 0.01, "a1": 1e-4, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
    own = {"fake": {"failing_token": POISON, "cost": cost}}
    with start_pools(p=own, d={}, router=("router.cluster.on_handoff_failure=fail",)) as pools:
        yield pools


async def test_leak_7_one_forward_pass_fails(strict: Any, checked: Any) -> None:
    """Eight hand-offs at once, one of which cannot be computed: exactly that one ends badly. Five times."""
    async with checked(strict) as pools:
        for turn in range(5):
            prompts = [pools.prompt(300) for _ in range(8)]
            prompts[turn] = (*prompts[turn][:200], POISON, *prompts[turn][201:])
            asked = [pools.ask(prompt, 16, on_unavailable="fail") for prompt in prompts]
            ends = await pools.answers(*asked)
            assert ends.pop(turn) in {"engine_failure", "kv_handoff_failed"}  # whichever leg tells first
            assert set(ends) == {"length"}


async def test_hnd_7_the_sender_dies_at_once(strict: Any, checked: Any) -> None:
    """The client hears of it within seconds, and the receiver waits for nothing."""
    async with checked(strict) as pools:
        asked = pools.ask(1800, 16, on_unavailable="fail")
        await pools.wait(lambda views: bool(views["d"]["receiving"]))
        pools.signal("p", signal.SIGKILL)
        killed_s = time.monotonic()
        await pools.answers(asked)
        assert asked.status >= 500, asked
        await pools.wait(lambda views: not views["d"]["running"] and not views["d"]["waiting"])
        assert time.monotonic() - killed_s < 10.0


async def test_xfer_6_one_put_cannot_be_posted(strict: Any, checked: Any) -> None:
    """Its request ends at once, by name; its half-filled blocks are no prefix: the same prompt again is right."""
    await strict.restart("p", transfer={"faults": {"on_put": {"60": "fail"}}})
    async with checked(strict) as pools:
        asked = []
        for _ in range(30):
            asked.append(one := pools.ask(pools.prompt(300), 16, on_unavailable="fail"))
            await pools.answers(one)
        failed = [one for one in asked if one.end != "length"]
        assert [one.end for one in failed] == ["kv_handoff_failed"]
        assert failed[0].took_s < 5.0
        again = pools.ask(failed[0].prompt, 16, on_unavailable="fail")
        assert await pools.answers(again) == ["length"]


@pytest.mark.parametrize("wish", ["fail", "colocate"])
async def test_xfer_4_both_receivers_are_replaced(start_pools: Any, checked: Any, wish: str) -> None:
    with start_pools(p0={}, p1={}, d0={}, d1={}) as fleet:
        async with checked(fleet) as pools:
            for name in ("d0", "d1"):
                pools.signal(name, signal.SIGKILL)
            await asyncio.gather(pools.restart("d0"), pools.restart("d1"))
            await pools.wait(lambda views: {"d0", "d1"} & set(views) != set())
            asked = [pools.ask(100, 16, on_unavailable=wish) for _ in range(40)]
            ends = await pools.answers(*asked)
            if wish == "colocate":
                assert set(ends) == {"length"}
            later = [pools.ask(100, 16, on_unavailable="colocate") for _ in range(40)]
            assert set(await pools.answers(*later)) == {"length"}
