"""The connected byte streams of a `tcp` sender, plain or encrypted, and the few bytes that come back."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from typing import Protocol, cast

from kvtransfer.protocol import TransferError
from kvtransfer.put_stream import MAX_PIECES, advance
from kvtransfer.sockets import acknowledged_bytes, unsent_bytes

TURN_BYTES = 16 << 20
TLS_PIECE_BYTES = 256 << 10


class Answers:
    """The few bytes that come back, and the end of the connection."""

    def __init__(self) -> None:
        self.lost: str | None = None
        self._bytes = bytearray()
        self._waiters: set[asyncio.Future[None]] = set()

    def feed(self, data: bytes) -> None:
        """Bytes came."""
        self._bytes += data[:16]
        self._wake()

    def lose(self, reason: str) -> None:
        """Nothing will come any more. The first reason counts."""
        self.lost = self.lost or reason
        self._wake()

    async def expect(self, answer: bytes) -> None:
        """Wait for this byte. Raises `TransferError` when the connection ends or says something else."""
        while not self._bytes:
            await self.changed()
        if self._bytes[:1] != answer:
            raise TransferError("the peer answered out of turn")
        del self._bytes[:1]

    async def changed(self) -> None:
        """Wait for bytes, for `poke`, or for the end; the latter raises `TransferError`."""
        if self.lost is None:
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        if self.lost is not None and not self._bytes:
            raise TransferError(self.lost)

    def poke(self) -> None:
        """Something that a waiter waits for may have happened."""
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)


class TcpChannel(Protocol):
    """A connected byte stream, plain or encrypted."""

    answers: Answers

    async def send(self, views: Sequence[memoryview]) -> None:
        """Returns when the views may change again. Raises `TransferError`, `TimeoutError` (no progress), `OSError`."""
        ...

    def moved(self) -> int:
        """Bytes that the peer acknowledged, 0 where the kernel does not say."""
        ...

    def unsent(self) -> int:
        """Bytes that wait in this host for the network, 0 where the kernel does not say."""
        ...

    def abort(self) -> None:
        """End at once. Idempotent."""
        ...


class PlainChannel:
    """Writes with `sendmsg` from several views at once, without a copy in between."""

    def __init__(self, sock: socket.socket, silence_s: float) -> None:
        self.answers = Answers()
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._silence_s = silence_s
        self._writable: asyncio.Future[None] | None = None
        self._open = True
        self._since_turn = 0
        self._loop.add_reader(sock, self._readable)

    async def send(self, views: Sequence[memoryview]) -> None:
        """See `TcpChannel`."""
        pieces = list(views)
        first = 0
        while first < len(pieces):
            try:
                count = self._sock.sendmsg(pieces[first : first + MAX_PIECES])
            except (BlockingIOError, InterruptedError):
                await self._until_writable()
                continue
            self._since_turn += count
            first, rest = advance(pieces, first, count)
            if rest is not None:
                pieces[first] = rest
            if self._since_turn >= TURN_BYTES:  # a fast peer must not keep the loop to itself
                self._since_turn = 0
                await asyncio.sleep(0)
                self._check()

    def moved(self) -> int:
        """See `TcpChannel`."""
        return acknowledged_bytes(self._sock) if self._open else 0

    def unsent(self) -> int:
        """See `TcpChannel`."""
        return unsent_bytes(self._sock) if self._open else 0

    def abort(self) -> None:
        """See `TcpChannel`."""
        if self._open:
            self._open = False
            self._loop.remove_reader(self._sock)
            self._loop.remove_writer(self._sock)
            self._sock.close()
            self.answers.lose("this end closed the connection")
            self._wake()

    def _check(self) -> None:
        if self.answers.lost is not None:
            raise TransferError(self.answers.lost)

    async def _until_writable(self) -> None:
        self._check()
        self._since_turn = 0
        self._writable = self._loop.create_future()
        self._loop.add_writer(self._sock, self._wake)
        self._timer = self._loop.call_later(self._silence_s, self._look, acknowledged_bytes(self._sock))
        try:
            await self._writable
        finally:
            self._timer.cancel()
            self._writable = None
            if self._open:
                self._loop.remove_writer(self._sock)
        self._check()

    def _look(self, before: int) -> None:
        """A third of a large buffer must be free before the socket counts as writable: a slow link may still move."""
        now = acknowledged_bytes(self._sock)
        if now > before:
            self._timer = self._loop.call_later(self._silence_s, self._look, now)
            return
        self.answers.lose(f"the peer took nothing for {self._silence_s:g} s")
        self._wake()

    def _wake(self) -> None:
        if self._writable is not None and not self._writable.done():
            self._writable.set_result(None)

    def _readable(self) -> None:
        try:
            data = self._sock.recv(16)
        except (BlockingIOError, InterruptedError):
            return
        except OSError as error:
            data, reason = b"", f"the connection broke: {error}"
        else:
            reason = "the peer closed the connection"
        if data:
            self.answers.feed(data)
        else:
            self._loop.remove_reader(self._sock)
            self.answers.lose(reason)
            self._wake()


class TlsChannel(asyncio.Protocol):
    """Encrypts piece by piece; the pieces are encrypted, hence copied, when `send` returns."""

    def __init__(self, silence_s: float) -> None:
        self.answers = Answers()
        self._silence_s = silence_s
        self._transport: asyncio.Transport | None = None
        self._paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake succeeded."""
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=2 * TLS_PIECE_BYTES)

    def data_received(self, data: bytes) -> None:
        """An answer."""
        self.answers.feed(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._transport = None
        self.answers.lose(f"the connection broke: {exc}" if exc else "the peer closed the connection")

    def pause_writing(self) -> None:
        """The socket does not keep up."""
        self._paused = True

    def resume_writing(self) -> None:
        """It does again."""
        self._paused = False
        self.answers.poke()

    async def send(self, views: Sequence[memoryview]) -> None:
        """See `TcpChannel`."""
        for view in views:
            for start in range(0, len(view), TLS_PIECE_BYTES):
                if self._transport is None or self.answers.lost is not None:
                    raise TransferError(self.answers.lost or "the connection ended")
                self._transport.write(view[start : start + TLS_PIECE_BYTES])
                while self._paused and self._transport is not None:
                    await self._until_moved()
        await asyncio.sleep(0)

    async def _until_moved(self) -> None:
        """Until something changed or left the socket. Raises `TimeoutError` when nothing did."""
        assert self._transport is not None
        sock: socket.socket = self._transport.get_extra_info("socket")
        before = acknowledged_bytes(sock)
        try:
            async with asyncio.timeout(self._silence_s):
                await self.answers.changed()
        except TimeoutError:
            if acknowledged_bytes(sock) <= before:
                raise

    def moved(self) -> int:
        """See `TcpChannel`."""
        return 0 if self._transport is None else acknowledged_bytes(self._transport.get_extra_info("socket"))

    def unsent(self) -> int:
        """See `TcpChannel`."""
        if self._transport is None:
            return 0
        return self._transport.get_write_buffer_size() + unsent_bytes(self._transport.get_extra_info("socket"))

    def abort(self) -> None:
        """See `TcpChannel`."""
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.abort()
        self.answers.lose("this end closed the connection")
