"""The receiving end of the `ucx` transport."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from kvtransfer import ucx_library
from kvtransfer.protocol import Admit, OnLanded, Span, TransferError
from kvtransfer.slot_spans import SlotTable
from kvtransfer.sockets import format_endpoint
from kvtransfer.ucx_library import UcxContext
from kvtransfer.ucx_stream import (
    ACCEPTED,
    END,
    ENDED,
    GREETING_BYTES,
    HEADER_BYTES,
    MAGIC,
    Staging,
    part,
    read_header,
    scatter,
    segments,
    tag,
)

ADMISSION_S = 5.0
MAX_OPEN_PUTS = 16
MAX_CONNECTIONS = 256
GRACE_S = 0.2
STOPPED_GRACE_S = 2.0
ABORT_DEADLINE_S = 5.0


class UcxReceiver:
    """Takes puts into one memory."""

    def __init__(self, memory: memoryview, on_landed: OnLanded, admit: Admit, *, host: str) -> None:
        self.slots = SlotTable(memory)
        self.on_landed = on_landed
        self.admit = admit
        self._host = host
        self._context: UcxContext | None = None
        self._listener: Any = None
        self._port = 0
        self._connections: set[_Connection] = set()
        self._closing = False

    @property
    def endpoint(self) -> str:
        """See `BulkReceiver`."""
        return format_endpoint("ucx", self._host, self._port)

    async def start(self) -> None:
        """See `BulkReceiver`."""
        self._context = context = UcxContext.acquire()

        async def on_endpoint(ucx: Any) -> None:  # UCXX awaits coroutine functions only, not what a lambda returns
            await self._serve(_Connection(self, context, ucx))

        try:
            self._listener = self._context.listen(on_endpoint)
            self._port = int(self._listener.port)
        except (ucx_library.error_type(), OSError) as error:
            await self._context.release()
            self._context = None
            raise TransferError(f"UCX cannot listen: {type(error).__name__}: {error}") from error

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """See `BulkReceiver`."""
        self.slots.open(slot_id, spans)

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See `BulkReceiver`. A receive that was posted cannot be taken back from a silent sender: after a moment of
        grace the connections that hold one are closed."""
        closing = asyncio.get_running_loop().create_task(self.slots.close(slot_id))
        await asyncio.wait([closing], timeout=STOPPED_GRACE_S if sender_stopped else GRACE_S)
        if not closing.done():
            writers = {writer for writer in self.slots.writers(slot_id) if isinstance(writer, _Put)}
            await asyncio.gather(*{writer.connection.end() for writer in writers})
            for writer in writers:
                self.slots.end(slot_id, writer)
        await closing

    async def close(self) -> None:
        """See `BulkReceiver`."""
        if self._closing or self._context is None:
            return
        self._closing = True
        self._listener.close()
        served = {connection.task for connection in self._connections if connection.task is not None}
        await asyncio.gather(*(connection.end() for connection in set(self._connections)))
        if served:
            await asyncio.wait(served, timeout=ABORT_DEADLINE_S)
        await self._context.release()

    async def _serve(self, connection: _Connection) -> None:
        if self._closing or len(self._connections) >= MAX_CONNECTIONS:
            await connection.end()
            return
        self._connections.add(connection)
        try:
            await connection.serve()
        finally:
            self._connections.discard(connection)


class _Put:
    """One put under way: the writer that the slot table knows."""

    def __init__(self, connection: _Connection, number: int) -> None:
        self.connection = connection
        self.number = number


class _Connection:
    """One endpoint and the puts that come over it."""

    def __init__(self, receiver: UcxReceiver, context: UcxContext, ucx: Any) -> None:
        self._receiver = receiver
        self._context = context
        self._ucx = ucx
        self._staging = Staging()
        self._room = asyncio.Semaphore(MAX_OPEN_PUTS)
        self._puts: set[asyncio.Task[None]] = set()
        self._ended: asyncio.Task[None] | None = None
        self.task: asyncio.Task[object] | None = None

    async def serve(self) -> None:
        """Until the sender ends, breaks the framing, or is gone."""
        self.task = asyncio.current_task()
        try:
            async with asyncio.timeout(ADMISSION_S):
                greeting = np.zeros(GREETING_BYTES, np.uint8)
                await self._ucx.recv(greeting)
                if not greeting.tobytes().startswith(MAGIC) or not self._receiver.admit(
                    greeting[len(MAGIC) :].tobytes()
                ):
                    return
                await self._ucx.send(np.frombuffer(ACCEPTED, np.uint8))
            await self._take_puts()
            await asyncio.gather(*self._puts)
            await self._ucx.send(np.frombuffer(ENDED, np.uint8))
            # The sender closes once it has the answer; closing first could overtake it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STOPPED_GRACE_S):
                    await self._ucx.recv(np.zeros(1, np.uint8))
        except (TimeoutError, TransferError, ucx_library.error_type()):
            pass  # this connection is over: its sender sees the close, our owner the end of the session
        finally:
            await self.end()

    async def end(self) -> None:
        """Close the endpoint, once; when this returns nothing writes on its behalf."""
        if self._ended is None:
            self._ended = asyncio.get_running_loop().create_task(self._abort())
        await asyncio.shield(self._ended)

    async def _abort(self) -> None:
        await self._context.abort(self._ucx)
        if self._puts:
            await asyncio.wait(set(self._puts), timeout=ABORT_DEADLINE_S)

    async def _take_puts(self) -> None:
        number = 0
        while True:
            message = np.zeros(HEADER_BYTES, np.uint8)
            await self._ucx.recv(message)
            kind, slot_id, offset, length, note = read_header(message)
            if kind == END:
                return
            await self._room.acquire()
            task = asyncio.get_running_loop().create_task(self._take(number, slot_id, offset, length, note))
            self._puts.add(task)
            task.add_done_callback(self._put_done)
            number += 1

    def _put_done(self, task: asyncio.Task[None]) -> None:
        self._puts.discard(task)
        self._room.release()
        if not task.cancelled():
            task.exception()  # the header's receive fails with it, and ends the connection

    async def _take(self, number: int, slot_id: bytes, offset: int, length: int, note: bytes) -> None:
        receiver, put = self._receiver, _Put(self, number)
        spans = receiver.slots.begin(slot_id, offset, length, put)
        try:
            memory = receiver.slots.memory
            views = [memory[span.offset : span.offset + span.length] for span in spans or ()]
            for index, (start, size) in enumerate(segments(length)):
                await self._take_segment(tag(number, index), size, part(views, start, size) if spans else None)
        finally:
            announce = receiver.slots.end(slot_id, put)
        if announce:
            receiver.on_landed(slot_id, offset, length, note)

    async def _take_segment(self, segment_tag: int, size: int, pieces: list[memoryview] | None) -> None:
        if pieces is not None and len(pieces) == 1:
            await self._ucx.recv(np.frombuffer(pieces[0], np.uint8), tag=segment_tag)
            return
        buffer = self._staging.take(size)
        await self._ucx.recv(buffer, tag=segment_tag)
        if pieces is not None and self._ended is None:
            scatter(buffer, pieces)
        self._staging.give(buffer)
