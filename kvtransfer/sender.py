"""Outgoing hand-offs: what the engine has computed goes out at once, then the commit, then the wait for its receipt.

A failure ends one ticket, and the receiver hears of it at once. A ticket's memory is read until `Closed` (answer to
`stop`), or until its `Sent`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from contracts.handoff import KVTicket
from kvtransfer.counters import TransferCounters
from kvtransfer.events import Arriving, Closed, Measured, SendFailed, Sent, TransferEvent
from kvtransfer.flow import Flow
from kvtransfer.outgoing import Outgoing
from kvtransfer.session import Session
from kvtransfer.source import Source
from kvtransfer.spans import Pool, ReadyCells, slot_of
from kvtransfer.wire import (
    MAX_PAYLOAD_BYTES,
    MAX_REASON_CHARS,
    Abort,
    Ack,
    Begin,
    ComputeDone,
    Message,
    Opened,
    Stopped,
    slot_id,
)

ACK_BASE_S = 2.0
ACK_FACTOR = 4.0
MAX_ACK_S = 60.0
MOVING_INTERVAL_S = 0.5
AT_LEAST_BYTES = 256 << 10
MAX_REMEMBERED = 4096


class Sender:
    """All tickets that this replica fulfils, over all sessions. On the transfer loop."""

    def __init__(
        self,
        pool: Pool,
        memory: memoryview,
        emit: Callable[[TransferEvent], None],
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        counters: TransferCounters,
        *,
        chunk_bytes: int,
        window: int,
        max_tickets: int,
        silence_s: float,
    ) -> None:
        self.counters = counters
        self._pool = pool
        self._memory = memory
        self._emit = emit
        self._spawn = spawn
        self._chunk_bytes = chunk_bytes
        self._window = window
        self._max_tickets = max_tickets
        self._silence_s = silence_s
        self._tickets: dict[str, Outgoing] = {}
        self._flows: dict[Session, Flow] = {}
        self._called_off: deque[str] = deque(maxlen=MAX_REMEMBERED)

    def busy(self, session: Session) -> bool:
        """Whether a transfer is under way on this session."""
        flow = self._flows.get(session)
        return flow is not None and flow.busy

    # --- the owner

    def send(self, ticket: KVTicket, blocks: Sequence[int], ready_tokens: int, session: Session | None) -> None:
        """Begin a ticket; the first `ready_tokens` tokens go at once. `SendFailed` at once where that cannot be."""
        try:
            outgoing = self._outgoing(ticket, tuple(blocks), session)
        except ValueError as error:
            self.counters.send_failed += 1
            self._emit(SendFailed(ticket.ticket_id, str(error)))
            return
        self._tickets[ticket.ticket_id] = outgoing
        self._flows[outgoing.session].tickets[ticket.ticket_id] = outgoing
        outgoing.session.channel.send(Begin(ticket_id=ticket.ticket_id))
        outgoing.cells.advance_all(ready_tokens)
        self._go_on(outgoing)

    def _outgoing(self, ticket: KVTicket, blocks: tuple[int, ...], session: Session | None) -> Outgoing:
        slot_id(ticket.ticket_id)
        if session is None or session not in self._flows:
            raise ValueError(f"no link to {ticket.receiver_id} ({ticket.receiver_incarnation})")
        if ticket.ticket_id in self._tickets:
            raise ValueError("this ticket was used before")
        if ticket.ticket_id in self._called_off:
            raise ValueError(f"{ticket.receiver_id} called this ticket off before it began")
        layout = session.peer.fingerprint.layout
        if ticket.block_size != layout.block_size:
            raise ValueError(f"a ticket with blocks of {ticket.block_size} tokens from {ticket.receiver_id}")
        slot = slot_of(
            layout, num_blocks=len(ticket.blocks), num_tokens=ticket.num_tokens, skip_tokens=ticket.skip_tokens
        )
        self._pool.slot_spans(blocks)
        if len(blocks) < self._pool.layout.blocks_for(ticket.num_tokens):
            raise ValueError(f"{len(blocks)} blocks do not hold {ticket.num_tokens} tokens")
        return Outgoing(ticket, blocks, session, ReadyCells(slot))

    def layer_done(self, ticket_id: str, layer: int, num_tokens: int) -> None:
        """The KV of the first `num_tokens` tokens lies in this layer."""
        outgoing = self._tickets.get(ticket_id)
        if outgoing is not None and not outgoing.ended:
            outgoing.cells.advance(layer, num_tokens)
            self._go_on(outgoing)

    def commit(self, ticket_id: str, payload: bytes) -> None:
        """All is computed; `payload` goes with the last word."""
        outgoing = self._tickets.get(ticket_id)
        if outgoing is None or outgoing.ended:
            return
        if len(payload) > MAX_PAYLOAD_BYTES:
            self._fail(outgoing, f"a payload of {len(payload)} bytes, at most {MAX_PAYLOAD_BYTES} are allowed")
            return
        outgoing.payload = payload
        outgoing.cells.advance_all(outgoing.ticket.num_tokens)
        self._go_on(outgoing)

    def stop(self, ticket_id: str, reason: str) -> None:
        """End the hand-off without a word to the owner but `Closed`."""
        outgoing = self._tickets.get(ticket_id)
        if outgoing is None:
            self._emit(Closed(ticket_id))
            return
        outgoing.stop_requested = True
        if not outgoing.ended:
            self._end(outgoing, reason, tell=True)

    def __contains__(self, ticket_id: object) -> bool:
        return ticket_id in self._tickets

    # --- sessions

    def on_up(self, session: Session) -> None:
        """A link came up."""
        block_size = session.peer.fingerprint.layout.block_size
        self._flows[session] = Flow(
            session,
            Source(self._pool, self._memory, block_size),
            self._on_put,
            chunk_bytes=self._chunk_bytes,
            window=self._window,
            max_tickets=self._max_tickets,
            silence_s=self._silence_s,
        )

    def on_down(self, session: Session, reason: str) -> None:
        """A link is gone, and with it its tickets."""
        flow = self._flows.pop(session)
        for outgoing in list(flow.tickets.values()):
            if not outgoing.ended:
                self._fail(outgoing, f"the link to {session.peer.replica_id} is gone: {reason}", tell=False)
        self._spawn(self._abandon(flow))

    async def _abandon(self, flow: Flow) -> None:
        await flow.close()
        for outgoing in list(flow.tickets.values()):
            outgoing.in_flight = 0
            self._settle(outgoing, flow)

    def on_message(self, session: Session, message: Message) -> bool:
        """What a receiver says about a ticket. Returns whether it was for the sending side at all."""
        if not isinstance(message, Opened | Ack | Abort):
            return False
        outgoing = self._tickets.get(message.ticket_id)
        if outgoing is None or outgoing.session is not session:
            if isinstance(message, Abort):
                self._called_off.append(message.ticket_id)
                session.channel.send(Stopped(ticket_id=message.ticket_id))
        elif outgoing.ended:
            pass
        elif isinstance(message, Abort):
            self._fail(outgoing, f"{session.peer.replica_id}: {message.reason}", tell=False)
        elif isinstance(message, Opened):
            outgoing.opened = True
            self._go_on(outgoing)
        elif outgoing.committed:
            self._acknowledged(outgoing, message)
        return True

    def tick(self, now: float) -> None:
        """Give up what takes too long."""
        for session, flow in list(self._flows.items()):
            reason = flow.stalled(now)
            if reason is not None:
                session.end(reason)
        for outgoing in list(self._tickets.values()):
            if outgoing.ended:
                continue
            moved_at = self._flows[outgoing.session].moved_at
            self._sign_of_life(outgoing, moved_at, now)
            # What the kernel buffered may take long on a link that became slow: what moves is not late.
            if outgoing.committed and now > max(outgoing.ack_deadline, moved_at + ACK_BASE_S):
                self._fail(outgoing, "the receiver did not acknowledge the commit in time")

    def _sign_of_life(self, outgoing: Outgoing, moved_at: float, now: float) -> None:
        """The owner holds the blocks longer while bytes get through, on a link that became slow as well."""
        if moved_at > outgoing.told_at and now - outgoing.told_at >= MOVING_INTERVAL_S:
            outgoing.told_at = now
            left = outgoing.cells.slot.num_bytes - outgoing.num_bytes
            self._emit(Arriving(outgoing.ticket_id, left, outgoing.session.bytes_per_s, 0.0))

    # --- on its way

    def _go_on(self, outgoing: Outgoing) -> None:
        if outgoing.cells.all_ready and not outgoing.compute_done:
            outgoing.compute_done = True
            outgoing.session.channel.send(ComputeDone(ticket_id=outgoing.ticket_id))
        self._flows[outgoing.session].pump()
        self._commit(outgoing)

    def _commit(self, outgoing: Outgoing) -> None:
        commit = outgoing.commit()
        if commit is not None:
            rate = outgoing.session.bytes_per_s
            buffered = min(commit.num_bytes, self._chunk_bytes * self._window)
            wait_s = ACK_BASE_S + (ACK_FACTOR * buffered / rate if rate > 0.0 else self._silence_s)
            outgoing.ack_deadline = asyncio.get_running_loop().time() + min(wait_s, MAX_ACK_S)
            outgoing.session.channel.send(commit)

    def _on_put(self, outgoing: Outgoing, error: str | None) -> None:
        flow = self._flows.get(outgoing.session)
        if flow is None:
            return
        if error is not None and not outgoing.ended:
            self._fail(outgoing, f"a put failed: {error}")
        elif outgoing.ended:
            self._settle(outgoing, flow)
        else:
            self._commit(outgoing)
        flow.pump()

    def _acknowledged(self, outgoing: Outgoing, ack: Ack) -> None:
        session = outgoing.session
        outgoing.ended = True
        self.counters.sent += 1
        self.counters.bytes_out += outgoing.num_bytes
        self._remove(outgoing, self._flows[session])
        if ack.measured_bytes > 0 and ack.measured_s > 0.0:
            session.bytes_per_s = ack.measured_bytes / ack.measured_s
            self._emit(Measured(session.peer.replica_id, ack.measured_bytes, ack.measured_s, probe=False))
        else:
            self._at_least(outgoing)
        self._emit(Sent(outgoing.ticket_id, outgoing.num_bytes))

    def _at_least(self, outgoing: Outgoing) -> None:
        """Where nothing was measured, since the link waited for the engine, it is at least as fast as the hand-off."""
        session = outgoing.session
        passed_s = asyncio.get_running_loop().time() - outgoing.streaming_at
        if outgoing.num_bytes >= AT_LEAST_BYTES and passed_s > 0.0:
            session.bytes_per_s = max(session.bytes_per_s, outgoing.num_bytes / passed_s)
            self._emit(Measured(session.peer.replica_id, outgoing.num_bytes, passed_s, probe=False, at_least=True))

    # --- ends

    def _fail(self, outgoing: Outgoing, reason: str, *, tell: bool = True) -> None:
        self.counters.send_failed += 1
        self._emit(SendFailed(outgoing.ticket_id, reason))
        self._end(outgoing, reason, tell=tell)

    def _end(self, outgoing: Outgoing, reason: str, *, tell: bool) -> None:
        outgoing.ended = True
        if tell:
            outgoing.session.channel.send(Abort(ticket_id=outgoing.ticket_id, reason=reason[:MAX_REASON_CHARS]))
        flow = self._flows.get(outgoing.session)
        if flow is not None:
            self._settle(outgoing, flow)

    def _settle(self, outgoing: Outgoing, flow: Flow) -> None:
        """An ended ticket of which no put is under way any more is done with."""
        if outgoing.in_flight or outgoing.ticket_id not in self._tickets:
            return
        outgoing.session.channel.send(Stopped(ticket_id=outgoing.ticket_id))
        self._remove(outgoing, flow)
        if outgoing.stop_requested:
            self._emit(Closed(outgoing.ticket_id))

    def _remove(self, outgoing: Outgoing, flow: Flow) -> None:
        del self._tickets[outgoing.ticket_id]
        del flow.tickets[outgoing.ticket_id]
        if self._flows.get(outgoing.session) is flow:
            flow.pump()  # others may have waited for it
