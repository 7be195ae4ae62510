"""The receiving end of the `nixl` transport: grants writes, polls while one is open, cuts off who does not finish."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.nixl_agent import THREAD, Agent, post
from kvtransfer.nixl_wire import ASK, END, ENDED, GRANT, LANDED, NOTICE, PUT, READY, REFUSED, answer, blob, read_blob
from kvtransfer.protocol import MAX_NOTE_BYTES, TOKEN_BYTES, Admit, OnLanded, Span, TransferError
from kvtransfer.slot_spans import SlotTable, address_of
from kvtransfer.sockets import format_endpoint, listening

ADMISSION_S = 5.0
MAX_CONNECTIONS = 256
GRACE_S = 0.2
STOPPED_GRACE_S = 2.0


class NixlReceiver:
    """Lets peers write into one memory."""

    def __init__(self, memory: memoryview, on_landed: OnLanded, admit: Admit, *, host: str) -> None:
        self.slots = SlotTable(memory)
        self.base = address_of(memory)
        self.on_landed = on_landed
        self.admit = admit
        self._host = host
        self._port = 0
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()

    @property
    def endpoint(self) -> str:
        """See `BulkReceiver`."""
        return format_endpoint("nixl", self._host, self._port)

    async def start(self) -> None:
        """See `BulkReceiver`. Makes an agent and drops it: UCX fails here when it has none of the transports wanted."""
        THREAD.enter()
        try:
            probe = await THREAD.call(lambda: Agent(self.base, len(self.slots.memory), lambda _notice: None))
            await THREAD.call(probe.destroy)
            del probe
            sock = listening(self._host, 0)
        except BaseException:
            await THREAD.leave()
            raise
        self._port = sock.getsockname()[1]
        self._server = await asyncio.start_server(self._accept, sock=sock)

    def open_slot(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """See `BulkReceiver`."""
        self.slots.open(slot_id, spans)

    async def close_slot(self, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See `BulkReceiver`. Who has a write granted and does not finish it in time loses its connection: only the
        end of the agent that it writes to is sure to stop it."""
        closing = asyncio.get_running_loop().create_task(self.slots.close(slot_id))
        await asyncio.wait([closing], timeout=STOPPED_GRACE_S if sender_stopped else GRACE_S)
        if not closing.done():
            writers = [writer for writer in self.slots.writers(slot_id) if isinstance(writer, Granted)]
            await asyncio.gather(*(connection.end() for connection in {writer.connection for writer in writers}))
        await closing

    async def close(self) -> None:
        """See `BulkReceiver`."""
        if self._server is None:
            return
        self._server.close()
        self._server = None
        connections = set(self._connections)
        await asyncio.gather(*(connection.end() for connection in connections))
        if connections:
            await asyncio.wait([connection.task for connection in connections])
        await THREAD.leave()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if self._server is None or len(self._connections) >= MAX_CONNECTIONS:
            writer.close()
            return
        connection = _Connection(self, reader, writer)
        self._connections.add(connection)
        connection.task.add_done_callback(lambda _task: self._connections.discard(connection))


@dataclass(frozen=True, slots=True, eq=False)
class Granted:
    """A write that a sender may make now."""

    connection: _Connection
    slot_id: bytes
    offset: int
    length: int
    note: bytes


class _Connection:
    """One sender, and the agent that only it writes to."""

    def __init__(self, receiver: NixlReceiver, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._receiver = receiver
        self._writer = writer
        self._loop = asyncio.get_running_loop()
        self._agent: Agent | None = None
        self._granted: dict[int, Granted] = {}
        self._all_landed = asyncio.Event()
        self._ending: asyncio.Task[None] | None = None
        self.task = self._loop.create_task(self._serve(reader))

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        try:
            async with asyncio.timeout(ADMISSION_S):
                if not self._receiver.admit(await reader.readexactly(TOKEN_BYTES)):
                    return
                await self._meet(reader)
            while await self._take(reader):
                await self._writer.drain()
        except (OSError, TimeoutError, asyncio.IncompleteReadError, TransferError):
            pass  # this connection is over: its sender sees the close, our owner the end of the session
        finally:
            await self.end()

    async def _meet(self, reader: asyncio.StreamReader) -> None:
        memory = self._receiver.slots.memory
        build = functools.partial(Agent, self._receiver.base, len(memory), self._notice)
        self._agent = agent = await THREAD.call(build)
        self._writer.write(blob(await THREAD.call(agent.metadata)))
        theirs = await read_blob(reader)
        await THREAD.call(lambda: agent.meet(theirs))
        self._writer.write(answer(READY, 0))

    async def _take(self, reader: asyncio.StreamReader) -> bool:
        kind, note_size, number, slot_id, offset, length = ASK.unpack(await reader.readexactly(ASK.size))
        if kind == END:
            while self._granted:
                self._all_landed.clear()
                await self._all_landed.wait()
            self._writer.write(answer(ENDED, number))
            return True
        if kind != PUT or note_size > MAX_NOTE_BYTES or number in self._granted:
            raise TransferError("a sender breaks the framing")
        write = Granted(self, slot_id, offset, length, await reader.readexactly(note_size))
        spans = self._receiver.slots.begin(slot_id, offset, length, write)
        if spans is None:
            self._writer.write(answer(REFUSED, number))
            return True
        self._granted[number] = write
        if length:
            agent = self._agent
            assert agent is not None
            await THREAD.call(functools.partial(THREAD.poll, agent))
        self._writer.write(answer(GRANT, number, [(self._receiver.base + s.offset, s.length) for s in spans]))
        if not length:
            self._landed(number)
        return True

    def _notice(self, notice: bytes) -> None:
        """On NIXL's thread: the data of a write is in memory."""
        if len(notice) == NOTICE.size:
            if self._agent is not None:
                THREAD.rest(self._agent)
            post(self._loop, self._landed, *NOTICE.unpack(notice))

    def _landed(self, number: int) -> None:
        write = self._granted.pop(number, None)
        if write is None or self._ending is not None:
            return
        if not self._granted:
            self._all_landed.set()
        if write.length:
            self._writer.write(answer(LANDED, number))
        if self._receiver.slots.end(write.slot_id, write):
            self._receiver.on_landed(write.slot_id, write.offset, write.length, write.note)

    async def end(self) -> None:
        """Cut the sender off; when this returns nothing writes on its behalf. Idempotent."""
        if self._ending is None:
            self._ending = self._loop.create_task(self._end())
        await asyncio.shield(self._ending)

    async def _end(self) -> None:
        if self._agent is not None:
            agent = self._agent
            await THREAD.call(functools.partial(THREAD.forget, agent))
            await THREAD.call(agent.destroy)
        self._writer.close()
        for write in self._granted.values():
            self._receiver.slots.end(write.slot_id, write)
        self._granted.clear()
        self._all_landed.set()
        if self.task is not asyncio.current_task():
            self.task.cancel()
