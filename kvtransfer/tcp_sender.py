"""The sending end of the `tcp` transport: gathered writes from the caller's memory, one put after the other.

A put returns when the kernel has its bytes. The connection is broken by a put that was cancelled in its middle, by the
peer's end, and by `silence_s` without any progress; a broken one says why at every further put.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from kvtransfer.protocol import TransferError
from kvtransfer.put_stream import ACCEPTED, END_HEADER, ENDED, preamble, put_header
from kvtransfer.tcp_channels import TcpChannel

FLUSH_S = 5.0


class TcpSender:
    """Puts over one channel, in order. See `kvtransfer.protocol.BulkSender`."""

    def __init__(self, channel: TcpChannel, device: str) -> None:
        self._channel = channel
        self._device = device
        self._turn = asyncio.Lock()
        self._closing = False
        self._closed = asyncio.Event()

    @property
    def device(self) -> str:
        """Name of the interface that the connection's local address belongs to."""
        return self._device

    async def introduce(self, token: bytes) -> None:
        """Present the token. Raises `TransferError` when the peer does not accept it."""
        try:
            await self._channel.send([memoryview(preamble(token))])
            await self._channel.answers.expect(ACCEPTED)
        except (TransferError, OSError) as error:
            raise TransferError(f"the peer did not accept the bulk connection: {error}") from error

    def moved(self) -> int | None:
        """Bytes that the peer's kernel acknowledged."""
        return self._channel.moved()

    def unsent(self) -> int:
        """What our kernel has taken and not sent yet."""
        return self._channel.unsent()

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """See the protocol."""
        views = [view for view in source if view.nbytes]
        header = put_header(slot_id, offset, sum(view.nbytes for view in views), note)
        if self._closing:
            raise TransferError("the connection is closed")
        async with self._turn:
            await self._send([memoryview(header), *views])

    async def close(self) -> None:
        """See the protocol. Waits until the peer says that everything has landed, or for the flush deadline."""
        if self._closing:
            await self._closed.wait()
            return
        self._closing = True
        try:
            async with asyncio.timeout(FLUSH_S):
                async with self._turn:
                    await self._send([memoryview(END_HEADER)])
                await self._channel.answers.expect(ENDED)
        except (TransferError, TimeoutError):
            pass  # then it could not be delivered; the owner's acknowledgement is missing too
        finally:
            self._channel.abort()
            self._closed.set()

    async def _send(self, views: Sequence[memoryview]) -> None:
        lost = self._channel.answers.lost
        if lost is not None:
            raise TransferError(lost)
        done = False
        try:
            await self._channel.send(views)
            done = True
        except TimeoutError:
            raise TransferError("the peer took nothing for too long") from None
        except OSError as error:
            raise TransferError(f"the connection broke: {error}") from error
        finally:
            if not done:  # half a put cannot be taken back
                with contextlib.suppress(OSError):
                    self._channel.abort()
