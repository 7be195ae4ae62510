"""The in-memory twin of the transports: endpoints `loopback://<name>`, one registry per process.

Receiver and sender may live on different loops in different threads. A put copies its source and is delivered by the
receiver's loop, so the rules of `kvtransfer.protocol` hold without locks. Faults are made by `kvtransfer.faults`, which
wraps any transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import threading
from collections.abc import Callable, Sequence

from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, Admit, OnLanded, Span, TransferError
from kvtransfer.put_stream import Counters
from kvtransfer.slot_spans import SlotTable

WINDOW_BYTES = 64 << 20
FLUSH_S = 5.0
SCHEME = "loopback"

_lock = threading.Lock()
_receivers: dict[str, LoopbackReceiver] = {}
_numbers = itertools.count(1)


class LoopbackReceiver:
    """See `kvtransfer.protocol.BulkReceiver`."""

    def __init__(self, memory: memoryview, on_landed: OnLanded, admit: Admit, name: str) -> None:
        self.counters = Counters()
        self.slots = SlotTable(memory)
        self._on_landed = on_landed
        self._admit = admit
        self._name = name
        self._loop: asyncio.AbstractEventLoop | None = None
        self._links: set[LoopbackSender] = set()

    @property
    def endpoint(self) -> str:
        """`loopback://<name>`."""
        return f"{SCHEME}://{self._name}"

    async def start(self) -> None:
        """Enter the registry. Raises `TransferError` if the name is taken."""
        self._loop = asyncio.get_running_loop()
        with _lock:
            if self._name in _receivers:
                raise TransferError(f"{self.endpoint} is taken")
            _receivers[self._name] = self

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """See the protocol."""
        self.slots.open(slot_id, spans)

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See the protocol. Each delivery is one step of the loop, so none is ever under way here."""
        await self.slots.close(slot_id)

    async def close(self) -> None:
        """See the protocol."""
        with _lock:
            if _receivers.get(self._name) is self:
                del _receivers[self._name]
        self._loop = None
        links, self._links = self._links, set()
        for link in links:
            link.lose("the peer closed the connection")

    def call(self, step: Callable[[], None]) -> None:
        """Run a step on the receiver's loop, from any thread. Raises `TransferError` when it is gone."""
        loop = self._loop
        try:
            if loop is None:
                raise RuntimeError
            loop.call_soon_threadsafe(step)
        except RuntimeError:
            raise TransferError("the peer closed the connection") from None

    def join(self, link: LoopbackSender, token: bytes) -> None:
        """On the receiver's loop: let a sender in, or turn it away."""
        if self._loop is None or not self._admit(token):
            self.counters.refused_connections += 1
            link.lose("the peer did not accept the bulk connection")
            return
        self._links.add(link)
        link.joined()

    def leave(self, link: LoopbackSender) -> None:
        """On the receiver's loop: the sender closed."""
        self._links.discard(link)

    def deliver(self, link: LoopbackSender, slot_id: bytes, offset: int, data: bytes, note: bytes) -> None:
        """On the receiver's loop: write and announce one put."""
        if link not in self._links:
            return
        link.landed(len(data))
        spans = self.slots.begin(slot_id, offset, len(data), link)
        if spans is None:
            return
        source, done = memoryview(data), 0
        for span in spans:
            self.slots.memory[span.offset : span.offset + span.length] = source[done : done + span.length]
            done += span.length
        if self.slots.end(slot_id, link):
            self.counters.landed_puts += 1
            self.counters.landed_bytes += len(data)
            self._on_landed(slot_id, offset, len(data), note)


class LoopbackSender:
    """See `kvtransfer.protocol.BulkSender`. `lose`, `joined` and `landed` may be called from any thread."""

    device = "memory"

    def __init__(self, receiver: LoopbackReceiver) -> None:
        self._receiver = receiver
        self._loop = asyncio.get_running_loop()
        self._waiters: set[asyncio.Future[None]] = set()
        self._joined = False
        self._closing = False
        self._lost: str | None = None
        self._in_flight = 0

    async def introduce(self, token: bytes) -> None:
        """Present the token. Raises `TransferError`."""
        self._receiver.call(lambda: self._receiver.join(self, token))
        await self._until(lambda: self._joined)

    def moved(self) -> int | None:
        """Only the end of a put tells."""
        return None

    def unsent(self) -> int:
        """Nothing that is known of."""
        return 0

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """See the protocol."""
        if len(slot_id) != SLOT_ID_BYTES or len(note) > MAX_NOTE_BYTES or offset < 0:
            raise ValueError("a slot id or a note of the wrong size, or a negative offset")
        if self._closing:
            raise TransferError("the connection is closed")
        await self._until(lambda: self._in_flight < WINDOW_BYTES)
        data = b"".join(source)
        self._in_flight += len(data)
        self._receiver.call(lambda: self._receiver.deliver(self, slot_id, offset, data, note))

    async def close(self) -> None:
        """See the protocol."""
        self._closing = True
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._until(lambda: not self._in_flight)
            self._receiver.call(lambda: self._receiver.leave(self))
        except (TransferError, TimeoutError):
            pass  # the peer is gone
        self._change(lost="this end closed the connection")

    def lose(self, reason: str) -> None:
        """The connection broke."""
        self._soon(lambda: self._change(lost=reason))

    def joined(self) -> None:
        """The receiver let this sender in."""
        self._soon(lambda: self._change(joined=True))

    def landed(self, count: int) -> None:
        """The receiver took `count` bytes."""
        self._soon(lambda: self._change(landed=count))

    def _soon(self, step: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the sender's loop is closed: nobody waits there
            self._loop.call_soon_threadsafe(step)

    def _change(self, *, lost: str | None = None, joined: bool = False, landed: int = 0) -> None:
        self._lost = self._lost or lost
        self._joined = self._joined or joined
        self._in_flight -= landed
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _until(self, condition: Callable[[], bool]) -> None:
        while self._lost is None and not condition():
            waiter = self._loop.create_future()
            self._waiters.add(waiter)
            try:
                await waiter
            finally:
                self._waiters.discard(waiter)
        if self._lost is not None:
            raise TransferError(self._lost)


class LoopbackTransport:
    """Moves bytes inside one process. `name` of its receivers; empty: each gets its own."""

    scheme = SCHEME

    def __init__(self, name: str = "") -> None:
        self._name = name

    def unavailable(self) -> str | None:
        """Never."""
        return None

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> LoopbackReceiver:
        """See the protocol."""
        return LoopbackReceiver(memory, on_landed, admit, self._name or f"{os.getpid()}-{next(_numbers)}")

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> LoopbackSender:
        """See the protocol."""
        with _lock:
            receiver = _receivers.get(endpoint.removeprefix(f"{SCHEME}://"))
        if receiver is None:
            raise TransferError(f"nobody listens on {endpoint} in this process")
        sender = LoopbackSender(receiver)
        try:
            async with asyncio.timeout(deadline_s):
                await sender.introduce(token)
        except TimeoutError:
            sender.lose("did not answer in time")
            raise TransferError(f"{endpoint} did not answer within {deadline_s:g} s") from None
        return sender
