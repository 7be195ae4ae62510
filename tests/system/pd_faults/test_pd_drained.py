"""A prefill replica that is asked to end stays until what it computed has been fetched."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Mapping
from typing import Any

import pytest

pytestmark = pytest.mark.system

QUICK_STEPS = {"cost": {"a0": 0.002, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}}
NUM_ASKED = 8
SLOW_TRANSFERS = {"faults": {"bytes_per_s": 200_000.0}}
"""800 tokens, 410 kB, two seconds each and all of them over one link: the last has its own after 16 s."""
LONG_LEASES = {"max_chunk": 128, "kv_lease_max_s": 60.0}


def all_computed_none_fetched(views: Mapping[str, Any]) -> bool:
    return {"p", "d"} <= set(views) and bool(
        views["p"]["sending"] == NUM_ASKED and not views["p"]["running"] and not views["p"]["waiting"]
    )


@pytest.mark.slow
async def test_k8s_6_a_prefill_replica_stays_until_its_kv_is_fetched(start_pools: Any, checked: Any) -> None:
    usual: dict[str, Any] = {"fake": QUICK_STEPS, "core": LONG_LEASES}
    own = {"p": {**usual, "transfer": SLOW_TRANSFERS}, "d": usual}
    with start_pools(**own) as started:
        async with checked(started) as pools:
            asks = [pools.ask(800, 20, on_unavailable="fail") for _ in range(NUM_ASKED)]
            await pools.wait(all_computed_none_fetched)
            pools.signal("p", signal.SIGTERM)
            process = pools.fleet.members["p"].process
            assert process.poll() is None
            assert await pools.answers(*asks) == ["length"] * NUM_ASKED
            assert {asked.layout for asked in asks} == {"disaggregated"}
            assert all(map(pools.is_right, asks))
            await asyncio.to_thread(process.wait, 30)
            assert process.returncode == 0
