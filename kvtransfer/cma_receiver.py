"""The receiving end of `kvtransfer.cma`, and the layout of the messages between both ends."""

from __future__ import annotations

import asyncio
import os
import secrets
import select
import socket
import struct
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from kvtransfer import process_memory
from kvtransfer.process_memory import PeerMemoryUnreadable, Piece
from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, TOKEN_BYTES, Admit, OnLanded, Span, TransferError
from kvtransfer.slot_spans import SlotTable, address_of

HELLO = struct.Struct(f"!{TOKEN_BYTES}sQ")  # token, address of the nonce
PUT = struct.Struct(f"!Q{SLOT_ID_BYTES}sQQHI")  # number, slot, offset, length, bytes of note, pieces
PIECE = struct.Struct("!QQ")  # address, length
ANSWER = struct.Struct("!QH")  # number of the put, bytes of a reason why the sender cannot be read
NONCE_BYTES = 32
_MAX_PIECES = 1 << 16
BYE = (1 << 64) - 1
_INLINE_BYTES = 128 << 10  # a smaller copy takes less time than a worker thread's answer
_HELLO_DEADLINE_S = 5.0
MAX_CONNECTIONS = 256  # a pair needs two (pool and scratch); more are shown out before they say anything


def peer_pid(writer: asyncio.StreamWriter) -> int:
    """Pid of the other end. Raises `TransferError` if it is another user's or not visible from here."""
    raw = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    pid, user, _group = struct.unpack("iII", raw)
    if user != os.geteuid() or pid <= 0:
        raise TransferError(f"the other end (process {pid}, user {user}) is not of user {os.geteuid()} on this host")
    return int(pid)


def _hung_up(writer: asyncio.StreamWriter) -> bool:
    """Whether the other end is gone, or the connection was closed here meanwhile: at the end of this replica."""
    number = writer.get_extra_info("socket").fileno()
    if number < 0:
        return True
    poll = select.poll()
    poll.register(number, select.POLLRDHUP)
    return bool(poll.poll(0))


class CmaReceiver:
    """Copies puts into one memory."""

    def __init__(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> None:
        self.slots = SlotTable(memory)
        self._base = address_of(memory) if len(memory) else 0
        self._on_landed = on_landed
        self._admit = admit
        self._name = f"phaseserve-{secrets.token_hex(16)}"
        self._server: asyncio.Server | None = None
        self._copier = ThreadPoolExecutor(1, thread_name_prefix="cma-copy")
        self._connections: set[asyncio.Task[None]] = set()
        self._closed = False

    @property
    def endpoint(self) -> str:
        """See `BulkReceiver`."""
        return f"cma://{process_memory.host_identity()}/{self._name}"

    async def start(self) -> None:
        """See `BulkReceiver`."""
        try:
            self._server = await asyncio.start_unix_server(self._accept, f"\0{self._name}")
        except OSError as error:
            raise TransferError(f"cannot listen on a Unix socket: {error}") from error

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """See `BulkReceiver`."""
        self.slots.open(slot_id, spans)

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See `BulkReceiver`. Waits for the copy under way, which no sender can hold up."""
        await self.slots.close(slot_id)

    async def close(self) -> None:
        """See `BulkReceiver`."""
        self._closed = True
        if self._server is not None:
            self._server.close()
        for task in self._connections:
            task.cancel()
        if self._connections:
            await asyncio.wait(self._connections)
        self._copier.shutdown(wait=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._closed or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._serve(reader, writer))
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            pid = peer_pid(writer)
            async with asyncio.timeout(_HELLO_DEADLINE_S):
                if not await self._admitted(reader, writer, pid):
                    return
            while await self._take_put(reader, writer, pid):
                await writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, TransferError):
            pass  # this connection is over: its sender sees the close, our owner the end of the session
        finally:
            writer.close()

    async def _admitted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        token = await reader.readexactly(TOKEN_BYTES)
        if not self._admit(token):
            return False
        (address,) = struct.unpack("!Q", await reader.readexactly(HELLO.size - TOKEN_BYTES))
        nonce = bytearray(NONCE_BYTES)
        try:
            process_memory.read(pid, [(address_of(memoryview(nonce)), len(nonce))], [(address, len(nonce))])
        except PeerMemoryUnreadable as error:
            self._answer(writer, 0, str(error))
            return False
        self._answer(writer, 0)
        writer.write(nonce)
        return True

    async def _take_put(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, pid: int) -> bool:
        number, slot_id, offset, length, note_size, num_pieces = PUT.unpack(await reader.readexactly(PUT.size))
        if note_size > MAX_NOTE_BYTES or num_pieces > _MAX_PIECES:
            raise TransferError("a put that no sender of this version makes")
        note = await reader.readexactly(note_size)
        pieces = list(PIECE.iter_unpack(await reader.readexactly(num_pieces * PIECE.size)))
        if number == BYE:
            self._answer(writer, number)
            return True
        if sum(size for _, size in pieces) != length:
            raise TransferError("a put whose pieces do not add up")
        put = (writer, number)
        spans = self.slots.begin(slot_id, offset, length, put)
        if spans is not None:
            try:
                whole = await self._copy(pid, [(self._base + s.offset, s.length) for s in spans], pieces, slot_id)
                if _hung_up(writer):
                    raise TransferError("the sender left while its memory was read")
            except PeerMemoryUnreadable as error:
                self._answer(writer, number, str(error))
                return True
            finally:
                announce = self.slots.end(slot_id, put)
            if whole and announce:
                self._on_landed(slot_id, offset, length, note)
        self._answer(writer, number)
        return True

    async def _copy(self, pid: int, target: list[Piece], source: list[Piece], slot_id: bytes) -> bool:
        if sum(size for _, size in source) <= _INLINE_BYTES:
            return process_memory.read(pid, target, source)
        stopped = False
        copy = asyncio.get_running_loop().run_in_executor(
            self._copier, process_memory.read, pid, target, source, lambda: stopped or not self.slots.is_open(slot_id)
        )
        cancelled: asyncio.CancelledError | None = None
        while not copy.done():  # the thread writes to the slot: nobody leaves before it does
            try:
                await asyncio.wait([copy])
            except asyncio.CancelledError as error:
                stopped, cancelled = True, error
        if cancelled is not None:
            copy.exception()
            raise cancelled
        return copy.result()

    @staticmethod
    def _answer(writer: asyncio.StreamWriter, number: int, reason: str = "") -> None:
        writer.write(ANSWER.pack(number, len(reason.encode())) + reason.encode())
