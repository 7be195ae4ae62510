"""KV between two processes of one host: the receiver copies out of the sender's memory. Promise: nothing writes late.

A put is a small message on a socket: where the bytes lie in the sender. The receiver's kernel copies them once,
straight into the slot (`kvtransfer.process_memory`), on a worker thread, and answers. So only the receiver ever writes
to its memory, and a frozen or dead sender is just an error: its socket closes, and what was copied while it closed
(its pid might be someone else's by now) is not announced.

Endpoint: `cma://<kernel, pid namespace and network namespace>/<abstract Unix socket>`. Both ends must run as one user,
which the kernel vouches for (SO_PEERCRED); the token comes first, then the receiver reads a nonce out of the sender's
memory and sends it back: the self-test of the link.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import secrets
import socket
from collections.abc import Sequence

from kvtransfer import process_memory
from kvtransfer.cma_receiver import ANSWER, BYE, HELLO, NONCE_BYTES, PIECE, PUT, CmaReceiver, peer_pid
from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, Admit, OnLanded, TransferError
from kvtransfer.slot_spans import address_of

_CLOSE_DEADLINE_S = 2.0

SLOWEST_COPY_BYTES_PER_S = 128e6


class CmaTransport:
    """`silence_s`: a receiver that answers nothing for so long while puts are open is given up."""

    scheme = "cma"

    def __init__(self, *, silence_s: float = 5.0) -> None:
        self._silence_s = silence_s

    def unavailable(self) -> str | None:
        """Why processes cannot read each other here, or None."""
        return process_memory.unavailable()

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> CmaReceiver:
        """See `Transport`."""
        return CmaReceiver(memory, on_landed, admit)

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> CmaSender:
        """See `Transport`. `memory` itself is not needed: sources are named by address."""
        host, _, name = endpoint.removeprefix("cma://").partition("/")
        if host != process_memory.host_identity():
            raise TransferError(f"{endpoint} is on another host or in another namespace")
        process_memory.allow_reading()
        try:
            async with asyncio.timeout(deadline_s):
                reader, writer = await asyncio.open_unix_connection(f"\0{name}")
                try:
                    await self._prove(reader, writer, token)
                except BaseException:
                    writer.close()
                    raise
        except (OSError, TimeoutError, asyncio.IncompleteReadError) as error:
            raise TransferError(f"no connection to {endpoint}: {str(error) or type(error).__name__}") from error
        return CmaSender(reader, writer, self._silence_s)

    async def _prove(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: bytes) -> None:
        peer_pid(writer)
        nonce = secrets.token_bytes(NONCE_BYTES)
        writer.write(HELLO.pack(token, address_of(memoryview(nonce))))
        number, size = ANSWER.unpack(await reader.readexactly(ANSWER.size))
        if number or size:
            raise TransferError((await reader.readexactly(size)).decode(errors="replace"))
        if not secrets.compare_digest(await reader.readexactly(NONCE_BYTES), nonce):
            raise TransferError("the other end cannot read this process's memory")


class CmaSender:
    """Names its memory to one receiver."""

    device = "memory"

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, silence_s: float) -> None:
        self._writer = writer
        self._silence_s = silence_s
        self._loop = asyncio.get_running_loop()
        self._heard_at = 0.0
        self._numbers = itertools.count(1)
        self._answers: dict[int, asyncio.Future[None]] = {}
        self._broken: str | None = None
        self._listener = self._loop.create_task(self._listen(reader))

    def moved(self) -> int | None:
        """Only the end of a put tells."""
        return None

    def unsent(self) -> int:
        """Nothing that is known of."""
        return 0

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """See `BulkSender`. Returns when the receiver has copied the bytes (or swallowed them)."""
        if len(slot_id) != SLOT_ID_BYTES or len(note) > MAX_NOTE_BYTES:
            raise ValueError(f"a put of slot {slot_id!r} with a note of {len(note)} bytes")
        pieces = [(address_of(view), view.nbytes) for view in source if view.nbytes]
        length = sum(size for _, size in pieces)
        rest = note + b"".join(PIECE.pack(*piece) for piece in pieces)
        await self._ask(next(self._numbers), (slot_id, offset, length, len(note), len(pieces)), rest)

    async def _ask(self, number: int, header: tuple[bytes, int, int, int, int], rest: bytes) -> None:
        if self._broken is not None:
            raise TransferError(self._broken)
        answer: asyncio.Future[None] = self._loop.create_future()
        self._answers[number] = answer
        asked_at = self._loop.time()
        try:
            self._writer.write(PUT.pack(number, *header) + rest)
            # One put is one answer: a huge one is copied for longer than a receiver may be silent otherwise.
            patience_s = self._silence_s + header[2] / SLOWEST_COPY_BYTES_PER_S
            while not (await asyncio.wait([answer], timeout=self._silence_s))[0]:
                if self._loop.time() - max(asked_at, self._heard_at) >= patience_s:
                    self._break(f"the receiver was silent for {patience_s:.3g} s")
            answer.result()
        except asyncio.CancelledError:
            # The receiver might be reading the source, which the caller is about to change: closing first makes it
            # drop what it read.
            answer.cancel()
            self._break("a put was cancelled")
            raise
        finally:
            self._answers.pop(number, None)

    async def close(self) -> None:
        """See `BulkSender`."""
        try:
            async with asyncio.timeout(_CLOSE_DEADLINE_S):
                if self._answers:
                    await asyncio.wait(list(self._answers.values()))
                await self._ask(BYE, (bytes(SLOT_ID_BYTES), 0, 0, 0, 0), b"")
        except (TimeoutError, TransferError):
            pass
        self._break("the connection was closed")
        await asyncio.wait([self._listener])

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        reason = "the receiver is gone"
        try:
            while True:
                number, size = ANSWER.unpack(await reader.readexactly(ANSWER.size))
                text = (await reader.readexactly(size)).decode(errors="replace")
                self._heard_at = self._loop.time()
                answer = self._answers.get(number)
                if answer is not None and not answer.done():
                    answer.set_exception(TransferError(text)) if text else answer.set_result(None)
        except (OSError, asyncio.IncompleteReadError) as error:
            reason = f"the receiver is gone: {type(error).__name__}"
        finally:
            self._break(reason)

    def _break(self, reason: str) -> None:
        if self._broken is None:
            self._broken = reason
            with contextlib.suppress(
                OSError
            ):  # now, not in the loop's next turn: the receiver looks before it announces
                self._writer.get_extra_info("socket").shutdown(socket.SHUT_RDWR)
            self._writer.transport.abort()
            for answer in self._answers.values():
                if not answer.done():
                    answer.set_exception(TransferError(reason))
            self._listener.cancel()
