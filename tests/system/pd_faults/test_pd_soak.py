"""Thousands of requests over two senders and two receivers while everything goes wrong, all of it from one seed."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

SEED = 20_261_130
NUM_REQUESTS = 2000
AT_ONCE = 16
LEAVES = 0.1
MEMBERS = ("p0", "p1", "d0", "d1")
LAYOUTS = ("disaggregated", "disaggregated", "disaggregated", "auto")


def faults_of(choose: random.Random) -> dict[str, Any]:
    """What the data plane of a replica does to others from its next start on."""
    faults: dict[str, Any] = {"seed": choose.randrange(1 << 30)}
    for name in choose.sample(("drop", "truncate", "corrupt", "reorder", "repeat"), 2):
        faults[name] = choose.choice((0.002, 0.01, 0.05))
    slow = choose.choice(("bytes_per_s", "delay_s", "stall_after_puts", "die_after_puts", ""))
    if slow:
        faults[slow] = {"bytes_per_s": 5e6, "delay_s": 0.01, "stall_after_puts": 150, "die_after_puts": 150}[slow]
    return {"transfer": {"faults": faults}}


class Soak:
    """Clients that come and go, and a hand that kills, freezes and restarts replicas, one at a time."""

    def __init__(self, pools: Any) -> None:
        self.pools = pools
        self.choose = random.Random(SEED)
        self.hurt: Counter[str] = Counter()
        self.num_begun = 0

    async def client(self) -> None:
        while self.num_begun < NUM_REQUESTS:
            self.num_begun += 1
            choose = self.choose
            prompt = choose.choice((choose.randrange(1, 60), choose.randrange(60, 600), choose.randrange(600, 1500)))
            asked = self.pools.ask(prompt, choose.randrange(1, 40), layout=choose.choice(LAYOUTS), deadline_s=120.0)
            if choose.random() < LEAVES:
                await asyncio.wait([asked.task], timeout=choose.uniform(0.0, 0.5))
                await asked.leave()
            await asyncio.wait([asked.task])

    async def hand(self) -> None:
        while True:
            await asyncio.sleep(self.choose.uniform(0.2, 1.5))
            name, number = self.choose.choice(MEMBERS), self.choose.random()
            if number < 0.5:
                self.hurt["killed"] += 1
                await self.pools.restart(name, **faults_of(self.choose))
            else:
                self.hurt["frozen"] += 1
                self.pools.signal(name, signal.SIGSTOP)
                await asyncio.sleep(self.choose.choice((0.3, 1.0, 4.0)))
                self.pools.signal(name, signal.SIGCONT)


@pytest.mark.timeout(1500)
async def test_soak(start_pools: Any) -> None:
    own = random.Random(SEED + 1)
    with start_pools(**{name: faults_of(own) for name in MEMBERS}) as pools:
        await pools.wait_whole()
        began_s, soak = time.monotonic(), Soak(pools)
        hand = asyncio.create_task(soak.hand())
        await asyncio.gather(*[soak.client() for _ in range(AT_ONCE)])
        hand.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await hand
        took_s = time.monotonic() - began_s
        ends = await pools.judged()
        slowest_s = max(asked.took_s for asked in pools.asks)
        for name in MEMBERS:
            pools.signal(name, signal.SIGCONT)
        await pools.wait_idle()
        survivors = await pools.incarnations()
        story = f"seed {SEED}: {len(pools.asks)} requests in {took_s:.0f} s, {ends}, {dict(soak.hurt)}"
        print(f"{story}, slowest {slowest_s:.1f} s, alive {sorted(survivors)}")
        assert sum(ends.values()) == NUM_REQUESTS
        assert ends["length"] >= 0.8 * NUM_REQUESTS, story
        for name in MEMBERS:
            await pools.restart(name, transfer={})
        await pools.settle()
        await pools.check()
