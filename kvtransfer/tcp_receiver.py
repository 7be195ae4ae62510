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
from typing import cast

from kvtransfer.protocol import Admit, OnLanded, Span
from kvtransfer.put_stream import Counters, PutReader
from kvtransfer.slot_spans import SlotTable
from kvtransfer.sockets import format_endpoint, listening, tune
from kvtransfer.tcp_connection import Connection, PlainPipe, TlsPipe

ADMISSION_S = 2.0
MAX_STRANGERS = 64
MAX_CONNECTIONS = 1024
ACCEPT_PAUSE_S = 0.2
OUT_OF_SOMETHING = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


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
        connection = Connection(reader, self._loop.time(), self.counters, self._connections.discard)
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
            if connection.overdue(now, ADMISSION_S, self._silence_s):
                self.counters.stalled_connections += 1
                connection.end()
        pause_s = min(ADMISSION_S, self._silence_s) / 4
        self._watch_timer = self._loop.call_later(pause_s, self._watch) if self._connections else None
