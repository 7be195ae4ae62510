"""KV that is corrupted, cut short, lost, repeated or reordered on its way, puts that fail or hang, links that break."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.system

FIRST, LAST = 60, 99
"""Puts that are hit: settling takes fewer than come before, and what is asked takes more than come until the end."""
CORRUPTS = {"truncate", "corrupt"}
HARMLESS = {"repeat", "reorder"}


def hit(fault: str) -> dict[str, Any]:
    return {"transfer": {"faults": {"on_put": {str(k): fault for k in range(FIRST, LAST + 1)}}}}


@pytest.fixture(scope="module", params=["recompute", pytest.param("fail", marks=pytest.mark.slow)])
def pair(start_pools: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    with start_pools(p={}, d={}, router=(f"router.cluster.on_handoff_failure={request.param}",)) as pools:
        pools.policy = request.param
        yield pools


async def until_past_the_faults(pools: Any, most: int = 40) -> None:
    """Eight at a time, until nothing has failed for a whole turn after the first hits."""
    for _ in range(most // 8):
        asked = [pools.ask(300, 16) for _ in range(8)]
        await pools.answers(*asked)


@pytest.mark.parametrize(
    "fault",
    [
        "corrupt",
        *[pytest.param(name, marks=pytest.mark.slow) for name in ("truncate", "drop", "repeat", "reorder", "fail")],
    ],
)
async def test_puts_that_suffer(pair: Any, checked: Any, fault: str) -> None:
    """Who is hit is computed anew or told so, by policy; nobody gets another text, nobody else fails."""
    await pair.restart("p", **hit(fault))
    async with checked(pair) as pools:
        before = await pools.views()
        await until_past_the_faults(pools)
        ends = await pools.judged()
        after = await pools.views()
        counted = {name: after["d"][name] - before["d"][name] for name in ("checksum_errors", "handoffs_failed")}
        failed = ends.get("kv_handoff_failed", 0)
        assert (counted["handoffs_failed"] == 0) == (fault in HARMLESS), counted
        assert (counted["checksum_errors"] > 0) == (fault in CORRUPTS), counted
        assert (failed > 0) == (pools.policy == "fail" and fault not in HARMLESS), ends
        assert set(ends) <= {"length", "kv_handoff_failed"}


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["stall", "die"])
async def test_a_link_that_hangs_or_breaks(pair: Any, checked: Any, fault: str) -> None:
    """It comes up again by itself."""
    await pair.restart("p", transfer={"faults": {"on_put": {str(FIRST): fault}}})
    async with checked(pair) as pools:
        for _ in range(5):
            await pools.answers(*[pools.ask(300, 16) for _ in range(4)])
        ends = await pools.judged()
        assert ends["length"] >= 12
