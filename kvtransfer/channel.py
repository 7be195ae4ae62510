"""One control connection: sealed frames over a stream, alive or ended.

Anything that arrives is a sign of life, and both sides ping. A silent peer, a broken seal, an overlong frame or a peer
that does not read ends the connection with a reason; `Channel.run` returns it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from contracts.errors import ProtocolError
from kvtransfer.auth import MAX_HANDSHAKE_MESSAGE_BYTES, Handshake, authenticate
from kvtransfer.protocol import TransferError
from kvtransfer.wire import (
    LENGTH,
    MAX_FRAME_BYTES,
    MAX_REASON_CHARS,
    Bye,
    Identity,
    Message,
    Ping,
    Pong,
    decode,
    decode_identity,
    encode,
    frame,
)

MAX_UNSENT_BYTES = 4 * MAX_FRAME_BYTES
FAREWELL_S = 0.3
TOUCH_SHARE = 0.05
PINGS_PER_SILENCE = 5


class ConnectionEnded(TransferError):
    """Nothing comes any more: the peer closed the connection, or it broke."""


class Channel:
    """An authenticated control connection. Made by `open_channel`; all methods on the transfer loop."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake, silence_s: float
    ) -> None:
        result = handshake.result
        assert result is not None
        self.peer: Identity = decode_identity(result.peer_identity)
        self.bulk_token = result.bulk_token
        self.round_trip_s: float | None = None
        self._seal, self._unseal = result.seals()
        self._reader = reader
        self._writer = writer
        self._silence_s = silence_s
        self._deadline: asyncio.Timeout | None = None
        self._reason: str | None = None
        self._pings: dict[int, float] = {}

    def send(self, message: Message) -> None:
        """Queue a message. Nothing happens on a connection that has ended."""
        if self._reason is not None or self._writer.is_closing():
            return
        self._writer.write(frame(self._seal.seal(encode(message))))
        if self._writer.transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._end("the peer does not read its control messages", within_s=0.0)

    def touch(self) -> None:
        """A sign of life came on another way. Moves the deadline in steps, since every put is such a sign."""
        if self._deadline is not None and self._reason is None and not self._deadline.expired():
            ends_at, now_ends_at = self._deadline.when(), asyncio.get_running_loop().time() + self._silence_s
            if ends_at is None or now_ends_at - ends_at >= TOUCH_SHARE * self._silence_s:
                self._deadline.reschedule(now_ends_at)

    def close(self, reason: str) -> None:
        """Say goodbye; `run` returns shortly after."""
        self.send(Bye(reason=reason[:MAX_REASON_CHARS]))
        self._end(reason, within_s=FAREWELL_S)
        self._writer.close()

    async def receive(self) -> Message:
        """The next message. Raises `TransferError` or `ProtocolError`; then the connection is of no use any more."""
        return decode(self._unseal.open(await read_frame(self._reader, MAX_FRAME_BYTES)))

    async def run(self, on_message: Callable[[Message], None]) -> str:
        """Deliver messages until the connection ends; returns why. Cancelling ends it too."""
        pings = asyncio.create_task(self._ping())
        try:
            async with asyncio.timeout(self._silence_s) as self._deadline:
                return await self._deliver(on_message)
        except TimeoutError:
            return self._reason or f"silent for {self._silence_s:g} s"
        except (TransferError, ProtocolError) as error:
            return self._reason or str(error)
        finally:
            pings.cancel()
            self._reason = self._reason or "ended"
            await self.drop()

    async def drop(self) -> None:
        """End the connection at once."""
        self._writer.transport.abort()
        with suppress(OSError):
            await self._writer.wait_closed()

    async def _deliver(self, on_message: Callable[[Message], None]) -> str:
        loop = asyncio.get_running_loop()
        while True:
            message = await self.receive()
            self.touch()
            if isinstance(message, Ping):
                self.send(Pong(nonce=message.nonce))
            elif isinstance(message, Pong):
                sent = self._pings.pop(message.nonce, None)
                if sent is not None:
                    self.round_trip_s = loop.time() - sent
            elif isinstance(message, Bye):
                return self._reason or f"the peer ended it: {message.reason}"
            else:
                on_message(message)

    async def _ping(self) -> None:
        loop = asyncio.get_running_loop()
        nonce = 0
        while True:
            self._pings = {nonce: loop.time()}
            self.send(Ping(nonce=nonce))
            nonce += 1
            await asyncio.sleep(self._silence_s / PINGS_PER_SILENCE)

    def _end(self, reason: str, within_s: float) -> None:
        if self._reason is None:
            self._reason = reason
            if self._deadline is not None and not self._deadline.expired():
                self._deadline.reschedule(asyncio.get_running_loop().time() + within_s)


async def read_frame(reader: asyncio.StreamReader, max_bytes: int) -> bytes:
    """The next frame. Raises `TransferError` when it is too long, `ConnectionEnded` when there is none any more."""
    try:
        (length,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        if length > max_bytes:
            raise TransferError(f"a frame of {length} bytes, at most {max_bytes} are allowed")
        return await reader.readexactly(length)
    except asyncio.IncompleteReadError as error:
        raise ConnectionEnded("the peer closed the connection") from error
    except OSError as error:
        raise ConnectionEnded(f"the connection broke: {str(error) or type(error).__name__}") from error


async def open_channel(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, handshake: Handshake, silence_s: float
) -> Channel:
    """Authenticate both sides. The caller bounds it in time. Raises `TransferError` or `ProtocolError`."""

    async def send(message: bytes) -> None:
        writer.write(frame(message))
        await writer.drain()

    async def receive() -> bytes:
        try:
            return await read_frame(reader, MAX_HANDSHAKE_MESSAGE_BYTES)
        except ConnectionEnded as error:  # a refused peer is not told why: what it may be has to be said here
            raise TransferError(f"{error} in the handshake: are secret and TLS settings the same there?") from error

    try:
        await authenticate(handshake, send, receive)
    except OSError as error:
        raise TransferError(f"the connection broke in the handshake: {str(error) or type(error).__name__}") from error
    return Channel(reader, writer, handshake, silence_s)
