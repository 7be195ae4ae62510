"""What the contract suite cannot ask of every transport: frozen peers, several loops in one process, idle costs."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvtransfer.config import TransferConfig
from kvtransfer.protocol import Span, Transport
from kvtransfer.transports import all_transports
from kvtransfer.ucx import UcxTransport

TOKEN = bytes(range(32))
SLOT, OTHER = bytes(range(16)), bytes(range(16, 32))
SIZE = 16 << 20
MakeLink = Callable[[Transport, int], Awaitable[Any]]
StartPeer = Callable[..., Awaitable[asyncio.subprocess.Process]]


@pytest.fixture(params=["cma", "ucx", "nixl"], scope="module")  # one library after the other
def library(request: pytest.FixtureRequest) -> Transport:
    """Each transport that is more than a socket."""
    found = all_transports(TransferConfig(host="127.0.0.1", silence_s=1.0))[request.param]
    if reason := found.unavailable():
        pytest.skip(reason)
    return found


async def test_a_frozen_sender_does_not_write_late(
    library: Transport, make_link: MakeLink, start_peer: StartPeer
) -> None:
    """The peer is stopped in the middle of puts, its slot is closed, and it wakes up again."""
    link = await make_link(library, SIZE)
    link.receiver.open_slot(SLOT, [Span(0, SIZE)])
    peer = await start_peer("send", library.scheme, link.receiver.endpoint)
    await link.until_landed(2, 30.0)
    peer.send_signal(signal.SIGSTOP)
    async with asyncio.timeout(10.0):
        await link.receiver.close_slot(SLOT, sender_stopped=False)
    count = len(link.landed)
    link.memory[:] = bytes(SIZE)
    peer.send_signal(signal.SIGCONT)
    await link.stays_at(count, 0.4)
    assert not any(link.memory)
    with contextlib.suppress(ProcessLookupError):  # it may have ended with an error, rightly
        peer.kill()
    link.receiver.open_slot(OTHER, [Span(0, 100)])
    sender = await link.connect()
    await sender.put(OTHER, 0, [link.source[:100]])
    await link.until_landed(count + 1)


async def test_a_sender_can_leave_a_frozen_receiver(library: Transport, start_peer: StartPeer) -> None:
    peer = await start_peer("receive", library.scheme)
    assert peer.stdout is not None
    endpoint = (await asyncio.wait_for(peer.stdout.readline(), 30.0)).decode().strip()
    source = memoryview(bytearray(SIZE))
    sender = await library.connect(endpoint, TOKEN, source, 10.0)
    await sender.put(SLOT, 0, [source])
    peer.send_signal(signal.SIGSTOP)
    puts = [asyncio.create_task(sender.put(SLOT, 0, [source])) for _ in range(4)]
    await asyncio.sleep(0.05)
    async with asyncio.timeout(15.0):
        await sender.close()
        results = await asyncio.gather(*puts, return_exceptions=True)
    assert all(result is None or isinstance(result, Exception) for result in results)
    assert any(isinstance(result, Exception) for result in results)


async def test_an_idle_connection_costs_nothing(library: Transport, make_link: MakeLink) -> None:
    link = await make_link(library, 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])
    sender = await link.connect()
    await sender.put(SLOT, 0, [link.source[: 1 << 20]])
    await link.until_landed(1)
    await asyncio.sleep(0.1)
    spent = time.process_time()
    await asyncio.sleep(0.5)
    assert time.process_time() - spent < 0.2, "somebody polls"


def test_services_with_loops_of_their_own(library: Transport) -> None:
    """Three threads, each with its loop, receiver and sender, at once; afterwards none of their threads is left."""
    results: list[bool] = []
    barrier = threading.Barrier(3)

    async def service(seed: int) -> None:
        memory, source = memoryview(bytearray(1 << 20)), memoryview(bytearray(os.urandom(1 << 20)))
        arrived = asyncio.Event()
        receiver = library.receiver(memory, lambda *_: arrived.set(), TOKEN.__eq__)
        await receiver.start()
        receiver.open_slot(SLOT, [Span(0, 1 << 20)])
        barrier.wait(20.0)
        sender = await library.connect(receiver.endpoint, TOKEN, source, 10.0)
        await sender.put(SLOT, 0, [source])
        await asyncio.wait_for(arrived.wait(), 10.0)
        if seed == 0:  # one service that ends must not take the others' progress away
            await sender.close()
            await receiver.close()
        else:
            await asyncio.sleep(0.2)
            arrived.clear()
            await sender.put(SLOT, 0, [source])
            await asyncio.wait_for(arrived.wait(), 10.0)
            await sender.close()
            await receiver.close()
        results.append(memory == source)

    before = threading.active_count()
    threads = [threading.Thread(target=lambda seed=seed: asyncio.run(service(seed))) for seed in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(40.0)
    assert results == [True] * 3
    deadline = time.monotonic() + 5.0
    while threading.active_count() > before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before, [thread.name for thread in threading.enumerate()]


async def test_ucx_says_what_it_runs_on() -> None:
    transport = all_transports(TransferConfig(host="127.0.0.1"))["ucx"]
    if reason := transport.unavailable():
        pytest.skip(reason)
    assert isinstance(transport, UcxTransport)
    assert "tcp" in await transport.active_transports()
