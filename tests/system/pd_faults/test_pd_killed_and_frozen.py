"""kill -9 and SIGSTOP of the sender, the receiver and the router at every step of a hand-off."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.system

FREEZE_S = 5.0
STEPS = ("reserved", "sending", "committed", "decoding")


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["p", "d", "router"])
async def test_kill(slow_pair: Any, checked: Any, victim: str, step: str) -> None:
    async with checked(slow_pair) as pools:
        asks = await pools.stand_at(step)
        pools.signal(victim, signal.SIGKILL)
        ends = await pools.answers(*asks)
        if victim == "p":
            assert set(ends) == {"length"}  # the decode replica computes what is missing
        elif victim == "router":
            assert set(ends) == {"cut off"}


@pytest.mark.slow
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("victim", ["p", "d", "router"])
async def test_freeze(slow_pair: Any, checked: Any, victim: str, step: str) -> None:
    """The router is thawed before anything can end; a frozen replica only after everything has ended without it."""
    async with checked(slow_pair) as pools:
        asks = await pools.stand_at(step)
        pools.signal(victim, signal.SIGSTOP)
        if victim == "router":
            await asyncio.sleep(FREEZE_S)
            pools.signal(victim, signal.SIGCONT)
        ends = await pools.answers(*asks)
        if victim == "p":
            assert set(ends) == {"length"}


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["drained", "stopped"])
async def test_the_router_is_restarted(slow_pair: Any, checked: Any, number: signal.Signals) -> None:
    """The replicas stay as they are: the next router finds links that are up, and no request of the last one's."""
    async with checked(slow_pair) as pools:
        asks = [*await pools.stand_at("reserved"), *[pools.ask(200, 20) for _ in range(3)]]
        await asyncio.sleep(0.2)
        before = await pools.incarnations()
        pools.router_died = True
        pools.fleet.kill("router", number)
        await pools.answers(*asks)
        await asyncio.to_thread(pools.fleet.members["router"].process.wait, 60)
        await pools.restart("router")
        await pools.wait_whole()
        assert await pools.incarnations() == before
