"""One contract for every transport: how its ends close, reconnect, are cancelled and killed, and that nothing stays."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvtransfer.protocol import Span, TransferError, Transport

SLOT = bytes(range(16))
OTHER = bytes(range(16, 32))
MakeLink = Callable[[Transport, int], Awaitable[Any]]
StartPeer = Callable[..., Awaitable[asyncio.subprocess.Process]]
CROSS_PROCESS = {"tcp", "cma", "ucx", "nixl"}


async def test_close_flushes(make_link: MakeLink, transport: Transport) -> None:
    size = 32 << 20
    link = await make_link(transport, size)
    link.source = memoryview(bytearray(os.urandom(1 << 20)) * 32)
    link.receiver.open_slot(SLOT, [Span(0, size)])
    for round_number in range(1, 4):
        sender = await link.connect()
        puts = asyncio.gather(*(sender.put(SLOT, i << 20, [link.source[i << 20 : (i + 1) << 20]]) for i in range(32)))
        await puts
        await sender.close()
        await link.until_landed(32 * round_number, 5.0)
        assert link.memory == link.source
        link.memory[:] = bytes(size)


async def test_a_closed_sender_says_so(link: Any) -> None:
    sender = await link.connect()
    await asyncio.gather(sender.close(), sender.close())
    await sender.close()
    with pytest.raises(TransferError):
        await sender.put(SLOT, 0, [link.source[:1]])


async def test_closing_the_receiver_breaks_its_senders(make_link: MakeLink, transport: Transport) -> None:
    size = 16 << 20
    link = await make_link(transport, size)
    link.source = memoryview(bytearray(b"\xcd") * size)
    link.receiver.open_slot(SLOT, [Span(0, size)])
    sender = await link.connect()

    async def fire() -> None:
        while True:
            await sender.put(SLOT, 0, [link.source])
            await asyncio.sleep(0)

    firing = asyncio.create_task(fire())
    await link.until_landed(1)
    await link.receiver.close()
    await link.receiver.close()
    link.memory[:] = bytes(size)
    with pytest.raises(TransferError):
        await asyncio.wait_for(firing, 10.0)
    assert not any(link.memory)
    with pytest.raises(TransferError):
        await link.connect()


async def test_reconnecting_many_times_leaves_nothing(
    make_link: MakeLink, transport: Transport, resources: Callable[[], Any]
) -> None:
    link = await make_link(transport, 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])
    before = resources()
    for number in range(51):
        sender = await link.connect()
        await sender.put(SLOT, 0, [link.source[: 1 << 16]], b"%d" % number)
        await sender.close()
        link.senders.clear()
        if number == 0:  # libraries keep something after their first connection
            await link.until_landed(1)
            await asyncio.sleep(0.05)
            before = resources()
    await link.until_landed(51)
    await asyncio.sleep(0.05)
    after = resources()
    assert after.threads <= before.threads
    assert after.descriptors <= before.descriptors + 1


async def test_cancelling_a_put_ends_at_worst_the_connection(make_link: MakeLink, transport: Transport) -> None:
    size = 64 << 20
    link = await make_link(transport, size)
    link.source = memoryview(bytearray(b"\xcd") * size)
    link.receiver.open_slot(SLOT, [Span(0, size)])
    sender = await link.connect()
    putting = asyncio.create_task(sender.put(SLOT, 0, [link.source]))
    await asyncio.sleep(0.002)
    putting.cancel()
    await asyncio.wait([putting], timeout=5.0)
    assert putting.done()
    await sender.close()
    await link.receiver.close_slot(SLOT, sender_stopped=False)
    link.receiver.open_slot(OTHER, [Span(0, 100)])
    count = len(link.landed)
    again = await link.connect()
    await again.put(OTHER, 0, [link.source[:100]])
    await link.until_landed(count + 1)


async def test_the_sender_is_killed(make_link: MakeLink, transport: Transport, start_peer: StartPeer) -> None:
    if transport.scheme not in CROSS_PROCESS or getattr(transport, "_server_tls", None):
        pytest.skip("one process only, or the same as without TLS")
    size = 16 << 20
    link = await make_link(transport, size)
    link.receiver.open_slot(SLOT, [Span(0, size)])
    peer = await start_peer("send", transport.scheme, link.receiver.endpoint)
    await link.until_landed(1, 30.0)
    peer.send_signal(signal.SIGKILL)
    await peer.wait()
    async with asyncio.timeout(10.0):
        await link.receiver.close_slot(SLOT, sender_stopped=False)
    count = len(link.landed)
    link.memory[:] = bytes(size)
    await link.stays_at(count)
    assert not any(link.memory)
    link.receiver.open_slot(OTHER, [Span(0, 100)])
    sender = await link.connect()
    await sender.put(OTHER, 0, [link.source[:100]])
    await link.until_landed(count + 1)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_the_receiver_is_killed_or_frozen(
    transport: Transport, start_peer: StartPeer, how: signal.Signals
) -> None:
    if transport.scheme not in CROSS_PROCESS or getattr(transport, "_server_tls", None):
        pytest.skip("one process only, or the same as without TLS")
    if how is signal.SIGSTOP and transport.scheme in ("ucx", "nixl"):
        pytest.skip("these transports leave a frozen peer to the session's deadline")
    peer = await start_peer("receive", transport.scheme)
    assert peer.stdout is not None
    endpoint = (await asyncio.wait_for(peer.stdout.readline(), 30.0)).decode().strip()
    source = memoryview(bytearray(16 << 20))
    sender = await transport.connect(endpoint, bytes(range(32)), source, 10.0)
    for _ in range(3):
        await sender.put(SLOT, 0, [source])
    peer.send_signal(how)

    async def fire() -> None:
        while True:
            await sender.put(SLOT, 0, [source])

    with pytest.raises(TransferError):
        await asyncio.wait_for(fire(), 20.0)
    async with asyncio.timeout(10.0):
        await sender.close()
