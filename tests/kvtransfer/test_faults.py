"""Faults on purpose: each does what its name says, the same ones for the same seed, and probes are spared."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvtransfer.config import FaultName, Faults, TransferConfig
from kvtransfer.faults import FaultPlan, FaultyTransport
from kvtransfer.loopback import LoopbackTransport
from kvtransfer.protocol import Span, TransferError, Transport
from kvtransfer.transports import all_transports
from kvtransfer.wire import PROBE_NOTE

SLOT = bytes(range(16))
SIZE = 1000
Start = Callable[[Faults], Awaitable[Any]]


@pytest.fixture
def start(make_link: Callable[[Transport, int], Awaitable[Any]]) -> Start:
    async def make(faults: Faults) -> Any:
        link = await make_link(FaultyTransport(LoopbackTransport(), faults), 10 * SIZE)
        link.receiver.open_slot(SLOT, [Span(0, 10 * SIZE)])
        return link

    return make


async def put(link: Any, number: int, note: bytes = b"") -> None:
    """The number-th thousand bytes, from two views."""
    at = number * SIZE
    await link.senders[-1].put(SLOT, at, [link.source[at : at + 300], link.source[at + 300 : at + SIZE]], note)


async def three_puts(start: Start, fault: FaultName) -> Any:
    link = await start(Faults(on_put={2: fault}))
    await link.connect()
    await asyncio.gather(*(put(link, number) for number in range(3)))
    return link


def same(link: Any, number: int) -> bool:
    part = slice(number * SIZE, (number + 1) * SIZE)
    return bool(link.memory[part] == link.source[part])


async def test_drop(start: Start) -> None:
    link = await three_puts(start, "drop")
    await link.until_landed(2)
    await link.stays_at(2)
    assert [same(link, number) for number in range(3)] == [True, False, True]


async def test_corrupt(start: Start) -> None:
    link = await three_puts(start, "corrupt")
    await link.until_landed(3)
    assert [same(link, number) for number in range(3)] == [True, False, True]
    assert sorted(link.memory[SIZE : 2 * SIZE]) == sorted(link.source[SIZE : 2 * SIZE])


async def test_truncate(start: Start) -> None:
    link = await three_puts(start, "truncate")
    await link.until_landed(3)
    assert sorted(length for _, _, length, _ in link.landed) == [SIZE // 2, SIZE, SIZE]


async def test_reorder_and_repeat(start: Start) -> None:
    link = await three_puts(start, "reorder")
    await link.until_landed(3)
    assert [offset // SIZE for _, offset, _, _ in link.landed] == [0, 2, 1]
    assert all(same(link, number) for number in range(3))
    link = await three_puts(start, "repeat")
    await link.until_landed(4)
    assert sorted(offset // SIZE for _, offset, _, _ in link.landed) == [0, 1, 1, 2]


async def test_reorder_of_the_last_put_only_delays_it(start: Start) -> None:
    link = await start(Faults(on_put={1: "reorder"}))
    await link.connect()
    await put(link, 0)
    await link.until_landed(1)


@pytest.mark.parametrize("fault", ["die", "fail"])
async def test_die_and_fail(start: Start, fault: FaultName) -> None:
    link = await start(Faults(on_put={2: fault}))
    await link.connect()
    await put(link, 0)
    for number in (1, 2):
        with pytest.raises(TransferError):
            await put(link, number)
    await link.connect()
    await put(link, 3)
    await link.until_landed(2)


async def test_stall_ends_with_the_connection(start: Start) -> None:
    link = await start(Faults(stall_after_puts=1))
    sender = await link.connect()
    await put(link, 0)
    hanging = [asyncio.create_task(put(link, number)) for number in (1, 2)]
    await link.stays_at(1)
    assert not any(task.done() for task in hanging)
    await put(link, 3, bytes(PROBE_NOTE.size))
    await link.until_landed(2)
    await sender.close()
    for task in hanging:
        with pytest.raises(TransferError):
            await task


async def test_delay_and_rate(start: Start) -> None:
    link = await start(Faults(delay_s=0.05, bytes_per_s=50_000.0))
    await link.connect()
    loop = asyncio.get_running_loop()
    began = loop.time()
    await asyncio.gather(*(put(link, number) for number in range(10)))
    took_s = loop.time() - began
    assert took_s >= 10 * SIZE / 50_000.0 + 0.04
    assert took_s < 2.0


def test_the_seed_decides() -> None:
    def draw(seed: int) -> list[FaultName | None]:
        plan = FaultPlan(Faults(seed=seed, drop=0.2, corrupt=0.3))
        return [plan.next() for _ in range(400)]

    assert draw(1) == draw(1) != draw(2)
    assert 40 < draw(1).count("drop") < 130
    assert set(draw(1)) == {None, "drop", "corrupt"}


def test_probes_are_spared() -> None:
    plan = FaultPlan(Faults(drop=1.0))
    assert plan.spares(bytes(PROBE_NOTE.size))
    assert not plan.spares(b"")
    assert not FaultPlan(Faults(drop=1.0, spare_probes=False)).spares(bytes(PROBE_NOTE.size))


def test_faults_come_with_the_configuration() -> None:
    plain = all_transports(TransferConfig(host="127.0.0.1"))
    faulty = all_transports(TransferConfig(host="127.0.0.1", faults=Faults(on_put={3: "corrupt"})))
    assert plain.keys() == faulty.keys()
    assert all(isinstance(transport, FaultyTransport) for transport in faulty.values())
    assert not any(isinstance(transport, FaultyTransport) for transport in plain.values())


async def test_loopback_between_two_threads(make_link: Callable[[Transport, int], Awaitable[Any]]) -> None:
    link = await make_link(LoopbackTransport(), 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])
    threads = set()

    async def elsewhere() -> None:
        threads.add(threading.get_ident())
        source = memoryview(os.urandom(1 << 20))
        sender = await link.transport.connect(link.receiver.endpoint, bytes(range(32)), source, 5.0)
        await asyncio.gather(*(sender.put(SLOT, i << 16, [source[i << 16 : (i + 1) << 16]]) for i in range(16)))
        await sender.close()
        with pytest.raises(TransferError):
            await link.transport.connect(link.receiver.endpoint, bytes(32), source, 5.0)
        assert link.memory == source

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, elsewhere()), 10.0)
    await link.until_landed(16)
    assert threading.get_ident() not in threads


async def test_a_loopback_name_is_taken_once() -> None:
    transport = LoopbackTransport("only-one")
    first, second = (transport.receiver(memoryview(bytearray(1)), lambda *_: None, lambda _: True) for _ in range(2))
    await first.start()
    with pytest.raises(TransferError, match="taken"):
        await second.start()
    await second.close()
    await first.close()
    await second.start()
    await second.close()
