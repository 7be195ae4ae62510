"""Clients that go away, at every step of a hand-off and all the time; with replicas that freeze meanwhile."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

LEASE_S = 6.0
STEPS = ("reserved", "sending", "committed", "decoding")


@pytest.fixture(scope="module")
def quick_pair(start_pools: Any) -> Iterator[Any]:
    with start_pools(p={}, d={}) as pools:
        yield pools


@pytest.mark.parametrize("step", STEPS)
async def test_a_client_leaves(slow_pair: Any, checked: Any, step: str) -> None:
    """Both legs end at once, long before any lease would."""
    async with checked(slow_pair) as pools:
        asks = await pools.stand_at(step)
        for asked in asks:
            await asked.leave()
        left_s = time.monotonic()
        await pools.wait_idle()
        assert time.monotonic() - left_s < LEASE_S


async def test_leak_1_clients_leave_while_the_sender_is_frozen(slow_pair: Any, checked: Any) -> None:
    """Ten reservations whose sender says nothing any more are given back within the lease, before it is replaced."""
    async with checked(slow_pair) as pools:
        asks = [pools.ask(400, 20, on_unavailable="fail") for _ in range(10)]
        await pools.wait(lambda views: views["d"]["receiving"] >= 8)
        pools.signal("p", signal.SIGSTOP)
        for asked in asks:
            await asked.leave()
        await pools.wait(lambda views: views["d"]["free_blocks"] == views["d"]["num_blocks"], deadline_s=LEASE_S + 5.0)
        pools.signal("p", signal.SIGKILL)


async def test_leak_3_time_outs_just_as_the_prefill_ends(slow_pair: Any, checked: Any) -> None:
    async with checked(slow_pair) as pools:
        first = pools.ask(800, 1)
        await pools.answers(first)
        choose = random.Random(3)
        for _ in range(25):
            asks = [pools.ask(800 // 4, 8) for _ in range(4)]
            await asyncio.sleep(first.took_s * choose.uniform(0.9, 1.1))
            for asked in asks:
                await asked.leave()
        await pools.wait_idle()


async def test_leak_4_clients_leave_at_any_time(quick_pair: Any, checked: Any) -> None:
    """500 leave at random, 50 stay; those get everything."""
    async with checked(quick_pair) as pools:
        first = pools.ask(40, 16)
        await pools.answers(first)
        choose = random.Random(4)

        async def come_and_go() -> None:
            asked = pools.ask(choose.randrange(8, 80), 16)
            await asyncio.wait([asked.task], timeout=choose.uniform(0.0, 1.2 * first.took_s))
            await asked.leave()

        stay = []
        for _ in range(50):
            going = [asyncio.create_task(come_and_go()) for _ in range(10)]
            stay.append(pools.ask(choose.randrange(8, 80), 16))
            await asyncio.gather(*going)
        assert set(await pools.answers(*stay)) == {"length"}


async def test_leak_6_a_cancel_concerns_one_request_only(slow_pair: Any, checked: Any) -> None:
    async with checked(slow_pair) as pools:
        idle = pools.ask(4, 4)
        await pools.answers(idle)
        for _ in range(3):
            long = pools.ask(1800, 10)
            await pools.wait(lambda views: views["p"]["running"] == 1)
            await asyncio.sleep(0.9)
            await long.leave()
            next_one = pools.ask(4, 4, deadline_s=20.0)
            assert await pools.answers(next_one) == ["length"]
            assert next_one.took_s < 2 * idle.took_s + 3.0


async def test_a_client_that_stops_reading(quick_pair: Any, checked: Any) -> None:
    """It asks and never reads; others are served, and when it goes nothing is left."""
    async with checked(quick_pair) as pools:
        port = pools.fleet.members["router"].port
        writers = []
        for _ in range(4):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            body = b'{"model":"tiny","prompt":[7,8,9],"max_tokens":1500,"ignore_eos":true,"stream":true}'
            head = "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
            writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
            writers.append(writer)
        assert await pools.answers(pools.ask(300, 16)) == ["length"]
        for writer in writers:
            writer.transport.abort()
        await pools.wait_idle()
