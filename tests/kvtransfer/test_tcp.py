"""What only the `tcp` transport promises: strangers, silence, encryption, IPv6, and sizes past 4 GiB."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from contracts.errors import ConfigError
from kvtransfer import tcp_receiver
from kvtransfer.protocol import Span, TransferError, Transport
from kvtransfer.put_stream import ACCEPTED, preamble, put_header
from kvtransfer.sockets import format_endpoint, listening, parse_endpoint
from kvtransfer.tcp import TcpTransport
from kvtransfer.tls import TlsFiles

SLOT = bytes(range(16))
TOKEN = bytes(range(32))
MakeLink = Callable[[Transport, int], Awaitable[Any]]
TlsSettings = Callable[[str], dict[str, str]]


def files(settings: dict[str, str]) -> TlsFiles:
    return TlsFiles(settings["tls_cert"], settings["tls_key"], settings["tls_ca"])


async def dial(link: Any) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = parse_endpoint(link.receiver.endpoint, "tcp")
    return await asyncio.open_connection(host, port)


async def ends(reader: asyncio.StreamReader, deadline_s: float) -> bytes:
    """What still comes before the other side closes; a reset or a refusal is a close."""
    try:
        async with asyncio.timeout(deadline_s):
            return await reader.read()
    except OSError:
        return b""


@pytest.fixture
async def link(make_link: MakeLink) -> Any:
    return await make_link(TcpTransport("127.0.0.1", silence_s=0.4), 1 << 20)


async def test_strangers(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    sender = await link.connect()
    request = b"GET / HTTP/1.1\r\nHost: localhost\r\nUser-Agent: curl\r\n\r\n"
    for words in (request, preamble(bytes(32)) + put_header(SLOT, 0, 4, b"") + b"evil", os.urandom(5000)):
        reader, writer = await dial(link)
        writer.write(words)
        assert await ends(reader, 5.0) == b""
        writer.close()
    assert link.receiver.counters.refused_connections == 3
    await sender.put(SLOT, 0, [link.source[:10]])
    await link.until_landed(1)
    assert not any(link.memory[10:])


async def test_a_silent_stranger_is_sent_away(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_receiver, "ADMISSION_S", 0.2)
    reader, writer = await dial(link)
    writer.write(preamble(TOKEN)[:20])
    assert await ends(reader, 5.0) == b""
    writer.close()
    assert link.receiver.counters.stalled_connections == 1


async def test_strangers_are_bounded_and_members_are_not_shut_out(link: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tcp_receiver, "MAX_STRANGERS", 3)
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    members = [await link.connect() for _ in range(5)]
    strangers = [await dial(link) for _ in range(3)]
    await asyncio.sleep(0.05)
    reader, writer = await dial(link)
    assert await ends(reader, 5.0) == b""
    writer.close()
    for sender in members:
        await sender.put(SLOT, 0, [link.source[:10]])
    await link.until_landed(5)
    for _, stranger in strangers:
        stranger.close()
    await asyncio.sleep(0.05)
    await (await link.connect()).put(SLOT, 0, [link.source[:10]])
    await link.until_landed(6)


async def test_a_put_that_stops_moving_is_cut(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    reader, writer = await dial(link)
    writer.write(preamble(TOKEN) + put_header(SLOT, 0, 1000, b"") + b"x" * 300)
    assert await reader.readexactly(1) == ACCEPTED
    began = time.monotonic()
    assert await ends(reader, 5.0) == b""
    assert time.monotonic() - began > 0.2
    writer.close()
    assert link.receiver.counters.stalled_connections == 1
    assert not link.receiver.slots.writers(SLOT)
    async with asyncio.timeout(1.0):
        await link.receiver.close_slot(SLOT, sender_stopped=False)


async def test_an_idle_member_stays(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    sender = await link.connect()
    await asyncio.sleep(1.0)
    await sender.put(SLOT, 0, [link.source[:10]])
    await link.until_landed(1)


async def test_a_peer_that_takes_nothing() -> None:
    """A listener that accepts the token and then never reads. The kernel's own time-out may come first."""
    listener = listening("127.0.0.1", 0)
    loop = asyncio.get_running_loop()
    transport = TcpTransport("127.0.0.1", silence_s=0.3)
    source = memoryview(bytearray(1 << 20))
    endpoint = format_endpoint("tcp", *listener.getsockname())
    connecting = asyncio.create_task(transport.connect(endpoint, TOKEN, source, 5.0))
    sock, _ = await loop.sock_accept(listener)
    await loop.sock_recv(sock, 36)
    await loop.sock_sendall(sock, ACCEPTED)
    sender = await connecting

    async def fire() -> None:
        while True:
            await sender.put(SLOT, 0, [source])

    with pytest.raises(TransferError, match=r"took nothing for 0\.3 s|timed out"):
        await asyncio.wait_for(fire(), 10.0)
    with pytest.raises(TransferError):
        await sender.put(SLOT, 0, [source[:1]])
    await asyncio.gather(sender.close(), sender.close())
    sock.close()
    listener.close()


async def test_a_peer_that_is_slow_but_moves() -> None:
    """So slow that the socket does not count as writable for longer than the silence that ends a connection."""
    listener = listening("127.0.0.1", 0)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
    loop = asyncio.get_running_loop()
    transport = TcpTransport("127.0.0.1", silence_s=0.3)
    source = memoryview(bytearray(8 << 20))
    connecting = asyncio.create_task(
        transport.connect(format_endpoint("tcp", *listener.getsockname()), TOKEN, source, 5.0)
    )
    sock, _ = await loop.sock_accept(listener)
    await loop.sock_recv(sock, 36)
    await loop.sock_sendall(sock, ACCEPTED)
    sender = await connecting
    putting = asyncio.create_task(sender.put(SLOT, 0, [source]))
    end = loop.time() + 1.5
    while loop.time() < end:
        await loop.sock_recv(sock, 1 << 14)
        await asyncio.sleep(0.05)
    assert not putting.done()
    while not putting.done():
        await loop.sock_recv(sock, 1 << 20)
    await putting
    sock.close()
    listener.close()
    await sender.close()


async def test_nobody_there() -> None:
    transport = TcpTransport("127.0.0.1")
    for endpoint in ("tcp://127.0.0.1:1", "tcp://127.0.0.1", "ucx://127.0.0.1:80", "tcp://127.0.0.1:x", "nonsense"):
        with pytest.raises(TransferError):
            await transport.connect(endpoint, TOKEN, memoryview(bytearray(1)), 1.0)
    with pytest.raises(TransferError, match=r"cannot listen on 203\.0\.113\.1"):
        await TcpTransport("203.0.113.1").receiver(memoryview(bytearray(1)), lambda *_: None, lambda _: True).start()


async def test_ipv6_and_the_device(make_link: MakeLink) -> None:
    try:
        listening("::1", 0).close()
    except TransferError:
        pytest.skip("no IPv6 on this machine")
    link = await make_link(TcpTransport("::1"), 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    assert link.receiver.endpoint.startswith("tcp://[::1]:")
    sender = await link.connect()
    assert sender.device == "lo"
    await sender.put(SLOT, 0, [link.source[:1000]])
    await link.until_landed(1)


async def test_encryption_is_mutual(make_link: MakeLink, tls_files: TlsSettings) -> None:
    ours, theirs = files(tls_files("ours")), files(tls_files("theirs"))
    link = await make_link(TcpTransport("127.0.0.1", tls=ours), 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    for transport in (TcpTransport("127.0.0.1", tls=theirs), TcpTransport("127.0.0.1")):
        with pytest.raises(TransferError):
            await transport.connect(link.receiver.endpoint, TOKEN, link.source, 5.0)
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.load_verify_locations(ours.ca)
    host, port = parse_endpoint(link.receiver.endpoint, "tcp")
    reader, writer = await asyncio.open_connection(host, port, ssl=nameless, server_hostname="")
    writer.write(preamble(TOKEN))
    assert await ends(reader, 5.0) == b""
    writer.close()
    plain = await make_link(TcpTransport("127.0.0.1", silence_s=0.5), 1000)
    with pytest.raises(TransferError):
        await TcpTransport("127.0.0.1", tls=ours).connect(plain.receiver.endpoint, TOKEN, link.source, 5.0)
    sender = await link.connect()
    await sender.put(SLOT, 0, [link.source[:1000]])
    await link.until_landed(1)
    assert link.memory[:1000] == link.source[:1000]
    assert len(link.landed) == 1


def test_tls_files_that_cannot_be_used(tls_files: TlsSettings) -> None:
    good = tls_files("ours")
    for name in ("tls_cert", "tls_key", "tls_ca"):
        with pytest.raises(ConfigError, match="missing"):
            TcpTransport("127.0.0.1", tls=files({**good, name: "/missing.pem"}))


async def test_reconnecting_at_once(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])
    for number in range(1, 201):
        sender = await link.connect()
        await sender.put(SLOT, 0, [link.source[: 1 << 20]])
        closing = asyncio.create_task(sender.close())
        other = await link.connect()
        await other.put(SLOT, 0, [link.source[: 1 << 20]])
        await asyncio.gather(closing, other.close())
        link.senders.clear()
        assert len(link.landed) == 2 * number
    assert link.memory == link.source[: 1 << 20]


async def test_two_loops_share_nothing(make_link: MakeLink) -> None:
    link = await make_link(TcpTransport("127.0.0.1"), 1 << 20)
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])

    async def elsewhere() -> None:
        sender = await link.transport.connect(link.receiver.endpoint, TOKEN, link.source, 5.0)
        await sender.put(SLOT, 0, [link.source[: 1 << 20]])
        await sender.close()

    await asyncio.wait_for(asyncio.to_thread(asyncio.run, elsewhere()), 10.0)
    assert link.memory == link.source[: 1 << 20]


@pytest.mark.slow
@pytest.mark.parametrize("size", [(2 << 30) - 1, 2 << 30, (4 << 30) + 1])
async def test_sizes_past_every_border(make_link: MakeLink, size: int) -> None:
    """One put; the slot's byte space and the source name the same 64 MiB again and again."""
    piece = 64 << 20
    link = await make_link(TcpTransport("127.0.0.1"), piece)
    link.source = memoryview(bytearray(os.urandom(1 << 20)) * 64)
    lengths = [min(piece, size - start) for start in range(0, size, piece)]
    link.receiver.open_slot(SLOT, [Span(0, length) for length in lengths])
    sender = await link.connect()
    await sender.put(SLOT, 0, [link.source[:length] for length in lengths], b"big")
    await link.until_landed(1, 60.0)
    assert link.landed == [(SLOT, 0, size, b"big")]
    assert link.memory == link.source
