"""The `nixl` transport: one-sided WRITE with a notice, over NIXL. PyPI's wheel has RDMA in it.

`kvtransfer.nixl_agent` imports the library, `kvtransfer.nixl_wire` says what goes over the socket beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import os
import socket
from collections.abc import Sequence

from kvtransfer import nixl_agent
from kvtransfer.interfaces import interface_of
from kvtransfer.nixl_agent import THREAD, Agent, Pair, post
from kvtransfer.nixl_receiver import NixlReceiver
from kvtransfer.nixl_wire import (
    ASK,
    END,
    ENDED,
    GRANT,
    LANDED,
    NOTICE,
    PUT,
    READY,
    REFUSED,
    blob,
    read_answer,
    read_blob,
)
from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, Admit, OnLanded, TransferError
from kvtransfer.slot_spans import address_of
from kvtransfer.sockets import parse_endpoint
from kvtransfer.ucx_settings import apply

_CLOSE_DEADLINE_S = 2.0
_CUT_DEADLINE_S = 1.0


class NixlTransport:
    """`host`: the address to listen on.

    `environment`: of `ucx_settings.ucx_environment`; what the first transport in a process brings counts.
    """

    scheme = "nixl"

    def __init__(self, host: str, environment: dict[str, str]) -> None:
        self._host = host
        self._environment = environment

    def unavailable(self) -> str | None:
        """Why it cannot be used, or None."""
        apply(self._environment, os.environ)
        try:
            nixl_agent.load()
        except (ImportError, OSError) as error:
            return f"nixl_cu12 cannot be imported: {error}"
        return None

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> NixlReceiver:
        """See `Transport`."""
        apply(self._environment, os.environ)
        return NixlReceiver(memory, on_landed, admit, host=self._host)

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> NixlSender:
        """See `Transport`."""
        apply(self._environment, os.environ)
        host, port = parse_endpoint(endpoint, self.scheme)
        sender = NixlSender(memory)
        try:
            async with asyncio.timeout(deadline_s):
                await sender.meet(host, port, token)
        except TimeoutError:
            await sender.close()
            raise TransferError(f"{endpoint} did not answer within {deadline_s:g} s") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            await sender.close()
            raise TransferError(f"cannot connect to {endpoint}: {str(error) or type(error).__name__}") from error
        except BaseException:
            await sender.close()
            raise
        return sender


def _device(sock: socket.socket) -> str:
    """The configured devices; or UCX's transports if only RDMA is among them; else the interface of the connection."""
    configured, transports = os.environ.get("UCX_NET_DEVICES", "all"), os.environ.get("UCX_TLS", "all")
    if configured == "all" and not {"tcp", "all"} & set(transports.split(",")) and not transports.startswith("^"):
        return transports
    return configured if configured != "all" else interface_of(sock.getsockname()[0]) or "unknown"


class NixlSender:
    """Writes to one receiver."""

    def __init__(self, memory: memoryview) -> None:
        self.device = "unknown"
        self._address, self._num_bytes = address_of(memory), len(memory)
        self._loop = asyncio.get_running_loop()
        self._writer: asyncio.StreamWriter | None = None
        self._listener: asyncio.Task[None] | None = None
        self._agent: Agent | None = None
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[list[Pair] | None]] = {}
        self._broken: str | None = None
        self._ending: asyncio.Task[None] | None = None
        THREAD.enter()

    async def meet(self, host: str, port: int, token: bytes) -> None:
        """Connect, show the token, exchange the agents' metadata. Raises `OSError`, `TransferError`."""
        reader, self._writer = await asyncio.open_connection(host, port)
        self.device = _device(self._writer.get_extra_info("socket"))
        self._writer.write(token)
        theirs = await read_blob(reader)
        build = functools.partial(Agent, self._address, self._num_bytes, lambda _notice: None)
        self._agent = agent = await THREAD.call(build)
        await THREAD.call(lambda: agent.meet(theirs))
        self._writer.write(blob(await THREAD.call(agent.metadata)))
        kind, _, _ = await read_answer(reader)
        if kind != READY:
            raise TransferError("the receiver breaks the framing")
        self._listener = self._loop.create_task(self._listen(reader))

    def moved(self) -> int | None:
        """Only the end of a put tells."""
        return None

    def unsent(self) -> int:
        """Nothing that is known of."""
        return 0

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """See `BulkSender`. Returns when NIXL has read the source (or the receiver refused the put)."""
        if len(slot_id) != SLOT_ID_BYTES or len(note) > MAX_NOTE_BYTES:
            raise ValueError(f"a put of slot {slot_id!r} with a note of {len(note)} bytes")
        pieces = [(address_of(view), view.nbytes) for view in source if view.nbytes]
        number, length = next(self._numbers), sum(size for _, size in pieces)
        try:
            granted = await self._ask(ASK.pack(PUT, len(note), number, slot_id, offset, length) + note, number)
            if granted is not None and length:
                await self._write(number, _pairs(pieces, granted))
        except asyncio.CancelledError:
            await self._end("a put was cancelled")
            raise

    async def close(self) -> None:
        """See `BulkSender`."""
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                if self._listener is not None and self._broken is None:
                    number = next(self._numbers)
                    await self._ask(ASK.pack(END, 0, number, bytes(SLOT_ID_BYTES), 0, 0), number)
        except (TimeoutError, TransferError):
            pass
        await self._end("the connection was closed")

    async def _ask(self, message: bytes, number: int) -> list[Pair] | None:
        if self._broken is not None or self._writer is None:
            raise TransferError(self._broken or "not connected")
        future: asyncio.Future[list[Pair] | None] = self._loop.create_future()
        self._answers[number] = future
        try:
            self._writer.write(message)
            return await future
        finally:
            self._answers.pop(number, None)

    async def _write(self, number: int, pairs: list[Pair]) -> None:
        agent = self._agent
        assert agent is not None
        done: asyncio.Future[str] = self._loop.create_future()

        def settle(reason: str) -> None:
            if not done.done():
                done.set_result(reason)

        def start() -> None:
            THREAD.poll(agent)  # until the receiver says that it landed: the notice needs calls at this end as well
            agent.write(pairs, NOTICE.pack(number), lambda reason: post(self._loop, settle, reason))

        try:
            await THREAD.call(start)
            reason = await done
        except TransferError as error:
            reason = error.message
        if reason:
            await self._end(f"the receiver is gone: {reason}")
            raise TransferError(self._broken or reason)

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        agent, reason = self._agent, "the receiver is gone"
        assert agent is not None
        try:
            while True:
                kind, number, pieces = await read_answer(reader)
                future = self._answers.get(number)
                if kind == LANDED:
                    await THREAD.call(functools.partial(THREAD.rest, agent))
                elif future is not None and not future.done() and kind in (GRANT, REFUSED, ENDED):
                    future.set_result([(0, *piece) for piece in pieces] if kind == GRANT else None)
        except (OSError, asyncio.IncompleteReadError, TransferError) as error:
            reason = f"the receiver is gone: {type(error).__name__}"
        self._ending = self._ending or self._loop.create_task(self._finish(reason))

    async def _end(self, reason: str) -> None:
        if self._ending is None:
            self._ending = self._loop.create_task(self._finish(reason))
        await asyncio.shield(self._ending)

    async def _finish(self, reason: str) -> None:
        """Destroy the agent, so that no source is read any more; then tell everybody who waits.

        The receiver goes first, where it can: UCX 1.23 on TCP ends the receiver's whole process ("failed to allocate
        put completion") when it handles the rest of a write whose sender has closed already.
        """
        self._broken = reason
        if self._listener is not None:
            with contextlib.suppress(OSError, RuntimeError):
                if self._writer is not None and not self._listener.done():
                    self._writer.write_eof()
                    await asyncio.wait([self._listener], timeout=_CUT_DEADLINE_S)
            self._listener.cancel()
        if self._agent is not None:
            await THREAD.call(functools.partial(_drop, self._agent))
        if self._writer is not None:
            self._writer.close()
        for future in self._answers.values():
            if not future.done():
                future.set_exception(TransferError(reason))
        await THREAD.leave()


def _drop(agent: Agent) -> None:
    THREAD.forget(agent)
    agent.destroy()


def _pairs(local: Sequence[tuple[int, int]], granted: Sequence[Pair]) -> list[Pair]:
    """Both sides cut at the same places. Raises `TransferError` if the grant is not as long as the put."""
    if sum(size for _, size in local) != sum(size for _, _, size in granted):
        raise TransferError("the receiver granted another length than was asked for")
    pairs, there = [], iter(granted)
    remote = remaining = 0
    for start, size in local:
        address, left = start, size
        while left:
            while not remaining:
                _, remote, remaining = next(there)
            length = min(left, remaining)
            pairs.append((address, remote, length))
            address, remote, left, remaining = address + length, remote + length, left - length, remaining - length
    return pairs
