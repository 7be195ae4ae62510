"""The memory that KV comes into, once per transport: the pool for tickets, scratch memory for self-tests and probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.probe import SCRATCH_BYTES
from kvtransfer.protocol import BulkReceiver, OnLanded, Span, Transport
from kvtransfer.wire import BulkOffer


@dataclass(frozen=True, slots=True)
class _Pair:
    pool: BulkReceiver
    scratch: BulkReceiver


class Intake:
    """The bulk receivers of every transport that this process offers, best first."""

    def __init__(
        self, transports: Sequence[Transport], memory: memoryview, on_landed: OnLanded, on_scratch: OnLanded
    ) -> None:
        self.scratch = memoryview(bytearray(SCRATCH_BYTES))
        self._tokens: set[bytes] = set()
        self._pairs = {
            transport.scheme: _Pair(
                transport.receiver(memory, on_landed, self.admits),
                transport.receiver(self.scratch, on_scratch, self.admits),
            )
            for transport in transports
        }

    async def start(self) -> None:
        """Listen everywhere. Raises `TransferError`; then `close` is to be called."""
        for pair in self._pairs.values():
            await pair.pool.start()
            await pair.scratch.start()

    def offers(self) -> tuple[BulkOffer, ...]:
        """What senders are told."""
        return tuple(
            BulkOffer(scheme=scheme, endpoint=pair.pool.endpoint, scratch_endpoint=pair.scratch.endpoint)
            for scheme, pair in self._pairs.items()
        )

    def admits(self, token: bytes) -> bool:
        """Whether a session with this token lives."""
        return token in self._tokens

    def add_session(self, token: bytes, scratch_slot: bytes, spans: Sequence[Span]) -> None:
        """A session was authenticated: its bulk connections are let in."""
        self._tokens.add(token)
        for pair in self._pairs.values():
            pair.scratch.open_slot(scratch_slot, spans)

    async def drop_session(self, token: bytes, scratch_slot: bytes) -> None:
        """The session is over: no further bulk connection of it is let in."""
        self._tokens.discard(token)
        for pair in self._pairs.values():
            await pair.scratch.close_slot(scratch_slot, sender_stopped=False)

    def open_slot(self, scheme: str, slot_id: bytes, spans: Sequence[Span]) -> None:
        """Raises `ValueError` for a bad slot, `KeyError` for a transport that is not offered."""
        self._pairs[scheme].pool.open_slot(slot_id, spans)

    async def close_slot(self, scheme: str, slot_id: bytes, *, sender_stopped: bool) -> None:
        """See `BulkReceiver.close_slot`."""
        await self._pairs[scheme].pool.close_slot(slot_id, sender_stopped=sender_stopped)

    def offered(self, scheme: str) -> bool:
        """Whether this transport is offered."""
        return scheme in self._pairs

    async def close(self) -> None:
        """End everything; afterwards the pool is not touched."""
        self._tokens.clear()
        for pair in self._pairs.values():
            await pair.pool.close()
            await pair.scratch.close()
