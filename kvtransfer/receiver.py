"""Incoming hand-offs: from the slot that is opened for a ticket to the last block that is counted and checked.

A ticket ends once: received (all cells landed once, every digest agreed, the commit says the same), lost, or stopped.
Its slot is closed before its end is told, or, when it is lost, before `Closed` answers the owner's `stop`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any

from contracts.handoff import FINISHED, HandoffReport, KVTicket
from kvtransfer.counters import TransferCounters
from kvtransfer.door import Guest
from kvtransfer.events import Arriving, Closed, Lost, Received, TransferEvent
from kvtransfer.incoming import Incoming
from kvtransfer.intake import Intake
from kvtransfer.spans import Pool, slot_of
from kvtransfer.wire import (
    BACK_TO_BACK,
    MAX_REASON_CHARS,
    PUT_NOTE,
    Abort,
    Ack,
    Begin,
    Commit,
    ComputeDone,
    Expect,
    Message,
    Opened,
    Stopped,
    Streaming,
    slot_id,
    ticket_name,
)

ARRIVING_INTERVAL_S = 0.1
STOP_WAIT_S = 2.0
MIN_MEASURED_S = 0.05
MAX_REMEMBERED = 4096


class Receiver:
    """All tickets that this replica issued and that are not over. On the transfer loop."""

    def __init__(
        self,
        pool: Pool,
        memory: memoryview,
        emit: Callable[[TransferEvent], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        counters: TransferCounters,
        *,
        silence_s: float,
    ) -> None:
        self.counters = counters
        self._pool = pool
        self._memory = memory
        self._emit = emit
        self._spawn = spawn
        self._silence_s = silence_s
        self._intake: Intake | None = None
        self._tickets: dict[str, Incoming] = {}
        self._by_slot: dict[bytes, Incoming] = {}
        self._by_name: dict[bytes, Incoming] = {}
        self._used: deque[str] = deque(maxlen=MAX_REMEMBERED)

    def attach(self, intake: Intake) -> None:
        """Where slots are opened; before anything else."""
        self._intake = intake

    # --- the owner

    def reserve(self, ticket: KVTicket, sender_id: str, guest: Guest | None) -> None:
        """Open the ticket's slot for its sender's session; `Lost` at once where that cannot be."""
        try:
            if guest is None or not guest.scheme:
                raise ValueError(f"{sender_id} has no link to this replica")
            if ticket.ticket_id in self._tickets or ticket.ticket_id in self._used:
                raise ValueError("this ticket was used before")
            layout = self._pool.layout
            if ticket.block_size != layout.block_size:
                raise ValueError(f"blocks of {ticket.block_size} tokens in a pool of {layout.block_size}")
            slot = slot_of(
                layout,
                num_blocks=len(ticket.blocks),
                num_tokens=ticket.num_tokens,
                skip_tokens=ticket.skip_tokens,
            )
            assert self._intake is not None
            self._intake.open_slot(guest.scheme, slot_id(ticket.ticket_id), self._pool.slot_spans(ticket.blocks))
        except ValueError as error:
            self.counters.lost += 1
            self._emit(Lost(ticket.ticket_id, str(error)))
            return
        incoming = Incoming(ticket, guest, slot, guest.scheme)
        self._tickets[ticket.ticket_id] = incoming
        self._by_slot[slot_id(ticket.ticket_id)] = incoming
        self._by_name[ticket_name(ticket.ticket_id)] = incoming

    def stop(self, ticket_id: str, reason: str) -> None:
        """End the hand-off without a word to the owner but `Closed`."""
        incoming = self._tickets.get(ticket_id)
        if incoming is None:
            self._emit(Closed(ticket_id))
            return
        incoming.stop_requested = True
        if not incoming.ended:
            self._end(incoming, reason, tell=True)

    # --- the sender, and the bytes

    def on_message(self, guest: Guest, message: Message) -> bool:
        """What a sender says about a ticket. Returns whether it was for the receiving side at all."""
        if isinstance(message, Expect):
            incoming = self._by_name.get(message.name)
            if incoming is not None and incoming.guest is guest and not incoming.ended:
                incoming.expected_at = asyncio.get_running_loop().time() + message.expected_s
                self._sign_of_life(incoming)
            return True
        if not isinstance(message, Begin | Streaming | ComputeDone | Commit | Abort | Stopped):
            return False
        incoming = self._tickets.get(message.ticket_id)
        if incoming is None or incoming.guest is not guest:
            if isinstance(message, Begin):
                self._refuse(guest, message.ticket_id)
        elif isinstance(message, Stopped):
            incoming.sender_stopped.set()
        elif not incoming.ended:
            self._advance(incoming, message)
        return True

    def _advance(self, incoming: Incoming, message: Begin | Streaming | ComputeDone | Commit | Abort) -> None:
        now = asyncio.get_running_loop().time()
        if isinstance(message, Begin):
            if incoming.begun:
                self._refuse(incoming.guest, message.ticket_id)
                return
            incoming.begun = True
            self._tell(incoming, Opened(ticket_id=message.ticket_id))
            self._sign_of_life(incoming)
        elif isinstance(message, Streaming):
            incoming.streaming_at = incoming.streaming_at or now
        elif isinstance(message, ComputeDone):
            incoming.compute_done_at = incoming.compute_done_at or now
            incoming.expected_at = now
        elif isinstance(message, Abort):
            finished = message.reason == FINISHED
            self._lose(incoming, f"{incoming.guest.replica_id}: {message.reason}", tell=False, finished=finished)
        elif incoming.commit is None:
            incoming.commit, incoming.committed_at = message, now
            self._check_complete(incoming)

    def on_landed(self, slot: bytes, offset: int, length: int, note: bytes) -> None:
        """A put is in memory: count it, check it."""
        incoming = self._by_slot.get(slot)
        if incoming is None or incoming.ended:
            return
        guest, now = incoming.guest, asyncio.get_running_loop().time()
        guest.channel.touch()
        guest.landed_at = now
        cells = incoming.slot.cells(offset, length)
        if cells is None or len(note) != PUT_NOTE.size:
            self._corrupt(incoming, f"a put of {length} bytes at {offset} is not what a sender sends")
            return
        flags, digest = PUT_NOTE.unpack(note)
        guest.meter.landed(now, length, back_to_back=bool(flags & BACK_TO_BACK))
        if incoming.digest_of(cells, self._pool, self._memory) != digest:
            self._corrupt(incoming, f"the checksum of {length} bytes at {offset} does not agree")
        elif (known := incoming.count(cells, offset, length, digest, now)) is None:
            self._corrupt(incoming, f"{length} bytes at {offset} overlap what came before")
        elif not known:
            self.counters.repeated_puts += 1
        else:
            self._sign_of_life(incoming)
            self._check_complete(incoming)

    def on_gone(self, guest: Guest, reason: str) -> None:
        """A sender's session ended, and with it its tickets."""
        for incoming in [one for one in self._tickets.values() if one.guest is guest]:
            incoming.guest_gone.set()
            if not incoming.ended:
                self._lose(incoming, f"the link to {guest.replica_id} is gone: {reason}", tell=False)

    def tick(self, now: float) -> None:
        """Lose what was committed and does not come."""
        for incoming in [one for one in self._tickets.values() if one.commit is not None and not one.ended]:
            waited = now - max(incoming.committed_at, incoming.guest.landed_at)
            if waited > incoming.tail_wait_s(now, self._silence_s):
                missing = incoming.bytes_left
                total = incoming.slot.num_bytes
                self._lose(incoming, f"{missing} of {total} bytes did not come within {waited:.1f} s", tell=True)

    # --- ends

    def _check_complete(self, incoming: Incoming) -> None:
        if incoming.commit is None or incoming.bytes_left or not incoming.begun:
            return
        difference = incoming.difference(incoming.commit)
        if difference is not None:
            self._corrupt(incoming, difference)
            return
        incoming.ended = True
        self._spawn(self._finish(incoming, incoming.commit.payload))

    async def _finish(self, incoming: Incoming, payload: bytes) -> None:
        now = asyncio.get_running_loop().time()
        await self._close(incoming, sender_stopped=True)
        if incoming.stop_requested:
            self._tell(incoming, Abort(ticket_id=incoming.ticket.ticket_id, reason="stopped"))
            self._emit(Closed(incoming.ticket.ticket_id))
            return
        self.counters.received += 1
        self.counters.bytes_in += incoming.slot.num_bytes
        guest = incoming.guest
        measured = guest.meter.take(MIN_MEASURED_S)
        num_bytes, duration_s = measured if measured is not None else (0, 0.0)
        if measured is not None:
            guest.bytes_per_s = num_bytes / duration_s
        ticket_id = incoming.ticket.ticket_id
        self._tell(incoming, Ack(ticket_id=ticket_id, measured_bytes=num_bytes, measured_s=duration_s))
        self._emit(Received(ticket_id, payload, self._report(incoming, now)))

    def _report(self, incoming: Incoming, now: float) -> HandoffReport:
        landed = incoming.landed_at or now
        computed = incoming.compute_done_at or landed
        return HandoffReport(
            num_bytes=incoming.slot.num_bytes,
            transfer_s=max(0.0, landed - (incoming.streaming_at or landed)),
            exposed_s=max(0.0, landed - computed),
            transport=incoming.scheme,
            prefill_replica_id=incoming.guest.replica_id,
        )

    def _corrupt(self, incoming: Incoming, reason: str) -> None:
        self.counters.checksum_errors += 1
        self._lose(incoming, reason, tell=True, corrupt=True)

    def _lose(
        self, incoming: Incoming, reason: str, *, tell: bool, corrupt: bool = False, finished: bool = False
    ) -> None:
        self.counters.lost += not finished
        self._emit(Lost(incoming.ticket.ticket_id, reason, corrupt, finished))
        self._end(incoming, reason, tell=tell)

    def _end(self, incoming: Incoming, reason: str, *, tell: bool) -> None:
        incoming.ended = True
        if tell:
            self._tell(incoming, Abort(ticket_id=incoming.ticket.ticket_id, reason=reason[:MAX_REASON_CHARS]))
        self._spawn(self._wind_down(incoming))

    async def _wind_down(self, incoming: Incoming) -> None:
        waits = [asyncio.create_task(event.wait()) for event in (incoming.sender_stopped, incoming.guest_gone)]
        try:
            await asyncio.wait(waits, timeout=STOP_WAIT_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waits:
                task.cancel()
        await self._close(incoming, sender_stopped=incoming.sender_stopped.is_set())
        if incoming.stop_requested:
            self._emit(Closed(incoming.ticket.ticket_id))

    async def _close(self, incoming: Incoming, *, sender_stopped: bool) -> None:
        ticket_id = incoming.ticket.ticket_id
        assert self._intake is not None
        await self._intake.close_slot(incoming.scheme, slot_id(ticket_id), sender_stopped=sender_stopped)
        self._used.append(ticket_id)
        del self._tickets[ticket_id]
        del self._by_slot[slot_id(ticket_id)]
        del self._by_name[ticket_name(ticket_id)]

    def _tell(self, incoming: Incoming, message: Message) -> None:
        if not incoming.guest_gone.is_set():
            incoming.guest.channel.send(message)

    def _refuse(self, guest: Guest, ticket_id: str) -> None:
        self.counters.refused_tickets += 1
        guest.channel.send(Abort(ticket_id=ticket_id, reason="no such ticket, or it was used"))

    def _sign_of_life(self, incoming: Incoming) -> None:
        now = asyncio.get_running_loop().time()
        if now - incoming.told_at >= ARRIVING_INTERVAL_S:
            incoming.told_at = now
            pace = incoming.bytes_per_s(now)
            expected_s = max(0.0, incoming.expected_at - now)
            self._emit(Arriving(incoming.ticket.ticket_id, incoming.bytes_left, pace, expected_s))
