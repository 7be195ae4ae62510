"""The receiving end of the `tcp` transport: one reader callback per connection, straight into the slots' memory.

All reading happens inside one callback on the loop, so no write is ever under way when other code of the loop runs:
closing a slot only has to tell the connections to swallow what still comes for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
import ssl
from collections.abc import Sequence
from typing import Protocol, cast

from kvtransfer.protocol import Admit, OnLanded, Span, TransferError
from kvtransfer.put_stream import Counters, PutReader, scatter
from kvtransfer.slot_spans import SlotTable
from kvtransfer.sockets import format_endpoint, listening, tune

READS_PER_TURN = 4
ADMISSION_S = 2.0
MAX_STRANGERS = 64
MAX_CONNECTIONS = 1024
ACCEPT_PAUSE_S = 0.2
STAGE_BYTES = 128 << 10
OUT_OF_SOMETHING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Pipe(Protocol):
    """How a connection answers and ends, plain or encrypted."""

    def write(self, data: bytes) -> None:
        """Send a few bytes. Raises `OSError`."""
        ...

    def close(self) -> None:
        """End, after what was written went out as far as it can at once."""
        ...


class Connection:
    """One bulk connection: its reader, and when it last moved."""

    def __init__(self, receiver: TcpReceiver, reader: PutReader, now: float) -> None:
        self.reader = reader
        self.pipe: Pipe | None = None
        self.over = False
        self.began_at = self.moved_at = now
        self._receiver = receiver

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
            self._receiver.counters.broken_connections += 1
        self.end()

    def overdue(self, now: float, silence_s: float) -> bool:
        """A stranger that does not show its token, or a put that does not move."""
        if not self.reader.admitted:
            return now - self.began_at > ADMISSION_S
        return not self.reader.between_puts and now - self.moved_at > silence_s

    def end(self) -> None:
        """Close it; its put writes no more. Idempotent."""
        self.over = True
        self.reader.cut()
        self._receiver.forget(self)
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


class PlainPipe:
    """An unencrypted connection: reads by itself when the socket has something."""

    def __init__(self, loop: asyncio.AbstractEventLoop, sock: socket.socket, connection: Connection) -> None:
        self._loop = loop
        self._sock = sock
        self._connection = connection
        loop.add_reader(sock, self._readable)

    def write(self, data: bytes) -> None:
        """At most two bytes go back per connection, so they always fit into the socket's buffer."""
        self._sock.send(data)

    def close(self) -> None:
        """Stop reading and close."""
        self._loop.remove_reader(self._sock)
        self._sock.close()

    def _readable(self) -> None:
        connection = self._connection
        for _ in range(READS_PER_TURN):
            try:
                count = self._sock.recvmsg_into(connection.reader.buffers())[0]
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                connection.lost()
                return
            if not count:
                connection.lost()
                return
            if not connection.filled(count, self._loop.time()):
                return


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


class TcpReceiver:
    """Listens, lets in who has a token, and writes their puts. See `kvtransfer.protocol.BulkReceiver`."""

    def __init__(
        self,
        memory: memoryview,
        on_landed: OnLanded,
        admit: Admit,
        *,
        host: str,
        silence_s: float,
        tls: ssl.SSLContext | None,
    ) -> None:
        self.counters = Counters()
        self.slots = SlotTable(memory)
        self._on_landed = on_landed
        self._admit = admit
        self._host = host
        self._silence_s = silence_s
        self._tls = tls
        self._listener: socket.socket | None = None
        self._connections: set[Connection] = set()
        self._handshakes: set[asyncio.Task[None]] = set()
        self._watch_timer: asyncio.TimerHandle | None = None
        self._accept_timer: asyncio.TimerHandle | None = None
        self._endpoint = ""

    @property
    def endpoint(self) -> str:
        """`tcp://host:port`. Valid after `start`."""
        return self._endpoint

    async def start(self) -> None:
        """Listen. Raises `TransferError`."""
        self._loop = asyncio.get_running_loop()
        self._listener = listening(self._host, 0)
        self._endpoint = format_endpoint("tcp", self._host, self._listener.getsockname()[1])
        self._loop.add_reader(self._listener, self._accept)

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """See the protocol."""
        self.slots.open(slot_id, spans)

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See the protocol. What still comes is swallowed, so it makes no difference whether the sender stopped."""
        for writer in self.slots.writers(slot_id):
            cast(PutReader, writer).cut()
        await self.slots.close(slot_id)

    async def close(self) -> None:
        """See the protocol."""
        listener, self._listener = self._listener, None
        if listener is not None:
            self._loop.remove_reader(listener)
            listener.close()
        for connection in list(self._connections):
            connection.end()
        for timer in (self._watch_timer, self._accept_timer):
            if timer is not None:
                timer.cancel()
        handshakes = list(self._handshakes)
        for task in handshakes:
            task.cancel()
        await asyncio.gather(*handshakes, return_exceptions=True)

    def forget(self, connection: Connection) -> None:
        """The connection ended."""
        self._connections.discard(connection)

    def _accept(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError as error:
            if error.errno in OUT_OF_SOMETHING:  # the listener stays readable: look away for a while
                self._loop.remove_reader(self._listener)
                self._accept_timer = self._loop.call_later(ACCEPT_PAUSE_S, self._accept_again)
            return
        strangers = sum(not connection.reader.admitted for connection in self._connections)
        if strangers >= MAX_STRANGERS or len(self._connections) >= MAX_CONNECTIONS:
            self.counters.refused_connections += 1
            sock.close()
            return
        sock.setblocking(False)
        tune(sock, self._silence_s)
        reader = PutReader(self.slots, self._on_landed, self._admit, self.counters)
        connection = Connection(self, reader, self._loop.time())
        self._connections.add(connection)
        if self._tls is None:
            connection.pipe = PlainPipe(self._loop, sock, connection)
        else:
            task = self._loop.create_task(self._encrypt(sock, connection))
            self._handshakes.add(task)
            task.add_done_callback(self._handshakes.discard)
        if self._watch_timer is None:
            self._watch()

    def _accept_again(self) -> None:
        if self._listener is not None:
            self._loop.add_reader(self._listener, self._accept)

    async def _encrypt(self, sock: socket.socket, connection: Connection) -> None:
        """Handshake with a new connection; one that fails is a stranger."""
        try:
            async with asyncio.timeout(ADMISSION_S):
                await self._loop.connect_accepted_socket(
                    lambda: TlsPipe(self._loop, connection), sock, ssl=self._tls, ssl_shutdown_timeout=ADMISSION_S
                )
        except (OSError, TimeoutError):
            self.counters.refused_connections += 1
            connection.end()
        except asyncio.CancelledError:
            connection.end()
            raise
        finally:
            if connection.pipe is None:
                with contextlib.suppress(OSError):
                    sock.close()

    def _watch(self) -> None:
        """End what does not move; look again soon, as long as there is anything to look at."""
        now = self._loop.time()
        for connection in list(self._connections):
            if connection.overdue(now, self._silence_s):
                self.counters.stalled_connections += 1
                connection.end()
        pause_s = min(ADMISSION_S, self._silence_s) / 4
        self._watch_timer = self._loop.call_later(pause_s, self._watch) if self._connections else None
