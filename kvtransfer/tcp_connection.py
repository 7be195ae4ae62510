"""One accepted connection of the `tcp` transport, plain or encrypted: reads into the memory that its reader names."""

from __future__ import annotations

import array
import asyncio
import fcntl
import socket
import termios
from collections.abc import Callable
from typing import Protocol, cast

from kvtransfer.protocol import TransferError
from kvtransfer.put_stream import Counters, PutReader, scatter

READS_PER_TURN = 4
STAGE_BYTES = 128 << 10
WAKE_BYTES = 256 << 10
"""We are woken for so much, or for what is missing of a put: on a slow link each segment would be a wake-up."""


class Pipe(Protocol):
    """How a connection answers and ends, plain or encrypted."""

    def write(self, data: bytes) -> None:
        """Send a few bytes. Raises `OSError`."""
        ...

    def unread(self) -> int:
        """Bytes that have arrived and are not read yet, as far as that is known."""
        ...

    def close(self) -> None:
        """End, after what was written went out as far as it can at once."""
        ...


class Connection:
    """One bulk connection: its reader, and when it last moved."""

    def __init__(self, reader: PutReader, now: float, counters: Counters, forget: Callable[[Connection], None]) -> None:
        self.reader = reader
        self.pipe: Pipe | None = None
        self.over = False
        self.began_at = self.moved_at = now
        self._unread = 0
        self._counters = counters
        self._forget = forget

    def filled(self, count: int, now: float) -> bool:
        """`count` bytes were read. Returns whether to go on reading."""
        self.moved_at = now
        try:
            answer = self.reader.filled(count)
            if answer and self.pipe is not None:
                self.pipe.write(answer)
        except (TransferError, OSError):
            self.end()
            return False
        if self.reader.ended:
            self.end()
        return not self.over

    def lost(self) -> None:
        """The peer closed, or the connection broke."""
        if not self.over and self.reader.admitted and not self.reader.between_puts:
            self._counters.broken_connections += 1
        self.end()

    def overdue(self, now: float, admission_s: float, silence_s: float) -> bool:
        """A stranger that does not show its token, or a put that does not move."""
        if not self.reader.admitted:
            return now - self.began_at > admission_s
        unread = self.pipe.unread() if self.pipe is not None else 0
        if unread != self._unread:  # too little to be woken for, but it moves
            self._unread, self.moved_at = unread, now
        return not self.reader.between_puts and now - self.moved_at > silence_s

    def end(self) -> None:
        """Close it; its put writes no more. Idempotent."""
        self.over = True
        self.reader.cut()
        self._forget(self)
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


class PlainPipe:
    """An unencrypted connection: reads by itself when the socket has something."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: Connection) -> None:
        self._loop = loop
        self._sock = sock
        self._connection = connection
        self._wakes_at = 1
        loop.add_reader(sock, self._readable)

    def write(self, data: bytes) -> None:
        """At most two bytes go back per connection, so they always fit into the socket's buffer."""
        self._sock.send(data)

    def unread(self) -> int:
        """See `Pipe`."""
        found = array.array("i", [0])
        fcntl.ioctl(self._sock, termios.FIONREAD, found)
        return found[0]

    def close(self) -> None:
        """Stop reading and close."""
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _readable(self) -> None:
        connection = self._connection
        for _ in range(READS_PER_TURN):
            missing = connection.reader.missing
            try:
                count = self._sock.recvmsg_into(connection.reader.buffers())[0]
            except (BlockingIOError, InterruptedError):
                break
            except OSError:
                connection.lost()
                return
            if not count:
                connection.lost()
                return
            if not connection.filled(count, self._loop.time()):
                return
            if count < missing:
                break
        wakes_at = min(connection.reader.missing, WAKE_BYTES)
        if wakes_at != self._wakes_at:
            self._wakes_at = wakes_at
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, wakes_at)


class TlsPipe(asyncio.BufferedProtocol):
    """An encrypted connection: asyncio decrypts into the memory that the reader names.

    One buffer costs one turn of the loop. So where the next piece is small, many are decrypted together and spread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, connection: Connection) -> None:
        self._loop = loop
        self._connection = connection
        self._transport: asyncio.Transport | None = None
        self._stage = memoryview(bytearray(STAGE_BYTES))
        self._staging = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The handshake succeeded."""
        self._transport = cast(asyncio.Transport, transport)
        self._connection.pipe = self
        if self._connection.over:  # the receiver closed, or lost its patience, meanwhile
            self._connection.end()

    def get_buffer(self, sizehint: int) -> memoryview:
        """Where the next bytes belong."""
        reader = self._connection.reader
        first = reader.buffers()[0]
        self._staging = reader.admitted and len(first) < STAGE_BYTES
        return self._stage if self._staging else first

    def buffer_updated(self, nbytes: int) -> None:
        """They are there."""
        if self._transport is None:
            return
        if not self._staging:
            self._connection.filled(nbytes, self._loop.time())
            return
        rest = self._stage[:nbytes]
        while rest:
            count = scatter(rest, self._connection.reader.buffers())
            rest = rest[count:]
            if not self._connection.filled(count, self._loop.time()):
                return

    def connection_lost(self, exc: Exception | None) -> None:
        """The peer closed, or the connection broke."""
        self._transport = None
        self._connection.lost()

    def unread(self) -> int:
        """All is read at once."""
        return 0

    def write(self, data: bytes) -> None:
        """Encrypt and send."""
        if self._transport is not None:
            self._transport.write(data)

    def close(self) -> None:
        """End at once, except that an answer on its way still goes out."""
        transport, self._transport = self._transport, None
        if transport is not None:
            if self._connection.reader.ended:
                transport.close()
            else:
                transport.abort()
