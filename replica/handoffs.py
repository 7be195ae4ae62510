"""Which ticket belongs to which sequence, and the transfer service in the core's words: actions in, events out.

A ticket is known here from its issue (receiver) or from the request that carries it (sender) until the core can ask
nothing more about it: its KV was received or sent, nothing touches its memory any more, or its sequence is over.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from contracts.errors import ProtocolError
from contracts.handoff import KVTicket, Peer
from contracts.replica_io import (
    CommitKV,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    LinkDown,
    LinkMeasured,
    LinkUp,
    ProbeLink,
    ReplicaEvent,
    ReserveKV,
    SendKV,
    StopKV,
)
from contracts.views import ReplicaIdentity
from decode_workers.kv_taker import issue_ticket, received
from kvtransfer.events import (
    Arriving,
    Closed,
    Linked,
    Lost,
    Measured,
    Received,
    SendFailed,
    Sent,
    TransferEvent,
    Unlinked,
)
from prefill_workers.kv_giver import KVGiver, commit_payload

log = logging.getLogger("phaseserve.replica")


class Transfers(Protocol):
    """What a replica asks of `kvtransfer.service.TransferService`. Everything returns at once."""

    def set_peers(self, peers: Sequence[Peer]) -> None: ...
    def reserve(self, ticket: KVTicket, sender_id: str) -> None: ...
    def send(self, ticket: KVTicket, blocks: Sequence[int], ready_tokens: int) -> None: ...
    def layer_done(self, ticket_id: str, layer: int, num_tokens: int) -> None: ...
    def expected(self, ticket_id: str, expected_s: float) -> None: ...
    def commit(self, ticket_id: str, payload: bytes) -> None: ...
    def stop(self, ticket_id: str, reason: str) -> None: ...
    def probe(self, peer_id: str, num_bytes: int) -> None: ...


@dataclass(slots=True, eq=False)
class Handoff:
    """One sequence's ticket. `sends` tells the sender's side from the receiver's. `opened`: the service knows it.
    `computed`: no step gives more of it away. `stopping`: only the service's last word counts any more."""

    core_id: str
    ticket: KVTicket
    sends: bool
    opened: bool = False
    computed: bool = False
    stopping: bool = False


class Handoffs:
    """All hand-offs of one replica. Used on the event loop only."""

    def __init__(self, service: Transfers, giver: KVGiver, identity: ReplicaIdentity) -> None:
        self._service = service
        self._giver = giver
        self._identity = identity
        self._by_core_id: dict[str, Handoff] = {}
        self._by_ticket: dict[str, Handoff] = {}

    def __len__(self) -> int:
        return len(self._by_core_id)

    # --- what routers say

    def set_peers(self, peers: tuple[Peer, ...]) -> None:
        """The replicas that KV may be sent to from now on."""
        self._service.set_peers(peers)

    def accepted(self, core_id: str, ticket: KVTicket) -> None:
        """A prefill leg was accepted and waits: its receiver hears of it until its KV is committed."""
        self._add(Handoff(core_id, ticket, sends=True))

    def __contains__(self, ticket_id: object) -> bool:
        """Whether a sequence here holds this ticket: each one is valid once."""
        return ticket_id in self._by_ticket

    def renew(self, expected_s: float) -> None:
        """Tell the receivers that their senders' prompts still queue or compute, for about `expected_s` more."""
        for handoff in self._by_core_id.values():
            if handoff.sends and not handoff.computed:
                self._service.expected(handoff.ticket.ticket_id, expected_s)

    # --- what the core says

    def reserve(self, action: ReserveKV) -> KVTicket:
        """Open a slot for one sequence; its router is to be told of the ticket."""
        ticket = issue_ticket(action, secrets.token_hex(16), self._identity)
        handoff = Handoff(action.request_id, ticket, sends=False, opened=True)
        self._add(handoff)
        self._service.reserve(ticket, action.prefill_replica_id)
        return ticket

    def send(self, action: SendKV) -> None:
        """Push one sequence's KV from now on."""
        handoff = self._by_core_id.get(action.request_id)
        if handoff is None:
            handoff = self._add(Handoff(action.request_id, action.ticket, sends=True))
        handoff.opened = True
        self._giver.open(action.request_id, action.ticket.ticket_id)
        self._service.send(action.ticket, action.blocks, action.ready_tokens)

    def commit(self, action: CommitKV) -> None:
        """All KV of one sequence is computed."""
        handoff = self._by_core_id[action.request_id]
        handoff.computed = True
        self._giver.close(action.request_id)
        self._service.commit(handoff.ticket.ticket_id, commit_payload(action))

    def stop(self, action: StopKV) -> KVClosed | None:
        """Give one hand-off up. The answer comes later, as an event, unless no transfer exists."""
        log.info("hand-off of %s ended early: %s", action.request_id, action.reason)
        self._giver.close(action.request_id)
        handoff = self._by_core_id.get(action.request_id)
        if handoff is None:
            return KVClosed(action.request_id)
        if not handoff.opened:
            self._service.stop(handoff.ticket.ticket_id, action.reason)
            self._drop(handoff)
            return KVClosed(action.request_id)
        handoff.computed = handoff.stopping = True
        self._service.stop(handoff.ticket.ticket_id, action.reason)
        return None

    def probe(self, action: ProbeLink) -> None:
        """Measure a link."""
        self._service.probe(action.peer_id, action.num_bytes)

    def ended(self, core_id: str) -> None:
        """The sequence is over: a ticket that the service never opened is of no use any more. Idempotent."""
        handoff = self._by_core_id.get(core_id)
        if handoff is not None and not handoff.opened:
            self._drop(handoff)

    # --- what the service says

    def event(self, event: TransferEvent) -> ReplicaEvent | None:
        """The core's event for one of the service's; None when it is about a hand-off that is over here."""
        match event:
            case Linked():
                log.info(
                    "link to %s: %s over %s, %.2f ms",
                    event.peer_id,
                    event.transport,
                    event.device,
                    event.latency_s * 1e3,
                )
                return LinkUp(event.peer_id, event.peer_incarnation, event.transport, event.device, event.latency_s)
            case Unlinked():
                log.warning("no link to %s: %s", event.peer_id, event.reason)
                return LinkDown(event.peer_id, event.peer_incarnation, event.reason)
            case Measured():
                if event.probe:
                    rate = event.num_bytes / max(event.duration_s, 1e-9)
                    log.info("link to %s: %.3f GB/s measured with %d bytes", event.peer_id, rate / 1e9, event.num_bytes)
                return LinkMeasured(event.peer_id, event.num_bytes, event.duration_s, event.probe, event.at_least)
        handoff = self._by_ticket.get(event.ticket_id)
        return None if handoff is None else self._about(handoff, event)

    def _about(
        self, handoff: Handoff, event: Arriving | Received | Lost | Sent | SendFailed | Closed
    ) -> ReplicaEvent | None:
        core_id = handoff.core_id
        if handoff.stopping and not isinstance(event, Closed):
            return None
        match event:
            case Arriving():
                return KVArriving(core_id, event.bytes_left, event.bytes_per_s, event.expected_s)
            case Received():
                return self._received(handoff, event)
            case Lost():
                return KVLost(core_id, event.reason, event.corrupt, event.finished)
            case Sent():
                self._drop(handoff)
                return KVSent(core_id, event.num_bytes)
            case SendFailed():
                self._giver.close(core_id)
                handoff.computed = True
                return KVSendFailed(core_id, event.reason)
            case Closed():
                self._drop(handoff)
                return KVClosed(core_id)

    def _received(self, handoff: Handoff, event: Received) -> KVReceived | KVLost:
        self._drop(handoff)
        try:
            return received(handoff.core_id, event.payload, event.report, self._identity.model.vocab_size)
        except ProtocolError as error:
            return KVLost(handoff.core_id, error.message)

    def _add(self, handoff: Handoff) -> Handoff:
        self._by_core_id[handoff.core_id] = handoff
        self._by_ticket[handoff.ticket.ticket_id] = handoff
        return handoff

    def _drop(self, handoff: Handoff) -> None:
        self._giver.close(handoff.core_id)
        self._by_core_id.pop(handoff.core_id, None)
        self._by_ticket.pop(handoff.ticket.ticket_id, None)
