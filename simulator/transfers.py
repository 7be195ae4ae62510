"""The data plane of all replicas: tickets, what is computed under them, links that come and go, in the cores' words.

Layer by layer: within a prefill step of duration T the KV of layer l is there at l*T/L. The flow of a
chunk therefore gets its first layer's bytes at T/L, then bytes at the rate of compute, and the last layer's at T.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from contracts.handoff import FINISHED, HandoffReport, KVTicket
from contracts.kv import KVLayout
from contracts.replica_io import (
    CommitKV,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    LinkMeasured,
    ProbeLink,
    ReplicaEvent,
    ReserveKV,
    SendKV,
    StopKV,
)
from simulator.clock import Clock
from simulator.links import Flow, Network

TRANSPORT = "simulated"
MOVING_S = 0.5
AT_LEAST_BYTES = 256 << 10


class Body(Protocol):
    """One process of a replica, as the data plane sees it."""

    @property
    def replica_id(self) -> str:
        """Its name, which is its host's too."""
        ...

    @property
    def incarnation(self) -> str:
        """Which process of that name."""
        ...

    @property
    def alive(self) -> bool:
        """Whether it still is there."""
        ...

    def hear(self, event: ReplicaEvent) -> None:
        """Its core's next event."""
        ...


@dataclass(slots=True, eq=False)
class Transfer:
    """One ticket from its issue to its end. `computed`: bytes whose KV is there; `tokens` are the sender's first."""

    ticket: KVTicket
    receiver: Body
    receiver_core_id: str
    bytes_per_token: int
    num_layers: int
    sender: Body | None = None
    sender_core_id: str = ""
    flow: Flow | None = None
    opened: bool = False
    committed: CommitKV | None = None
    computed_at: float = 0.0
    known_tokens: int = 0
    told_at: float = 0.0
    told_sent: float = 0.0

    @property
    def num_bytes(self) -> int:
        """What crosses the network."""
        return (self.ticket.num_tokens - self.ticket.skip_tokens) * self.bytes_per_token


@dataclass(slots=True)
class DataPlane:
    """All tickets of the fleet. `handed_over` counts hand-offs that came whole, `failed` those that did not."""

    clock: Clock
    network: Network
    handed_over: int = 0
    failed: int = 0
    _transfers: dict[str, Transfer] = field(default_factory=dict)
    _sending: dict[tuple[Body, str], Transfer] = field(default_factory=dict)
    _receiving: dict[tuple[Body, str], Transfer] = field(default_factory=dict)
    _serial: int = 0

    def __len__(self) -> int:
        return len(self._transfers)

    # --- the receiver

    def reserve(self, body: Body, action: ReserveKV, layout: KVLayout) -> KVTicket:
        """Issue a ticket."""
        self._serial += 1
        ticket = KVTicket(
            ticket_id=f"{self._serial:032x}",
            receiver_id=body.replica_id,
            receiver_incarnation=body.incarnation,
            num_tokens=action.num_tokens,
            skip_tokens=action.skip_tokens,
            blocks=action.blocks,
            block_size=layout.block_size,
        )
        transfer = Transfer(ticket, body, action.request_id, layout.bytes_per_token, layout.num_layers)
        self._transfers[ticket.ticket_id] = self._receiving[body, action.request_id] = transfer
        return ticket

    # --- the sender

    def accepted(self, body: Body, core_id: str, ticket: KVTicket) -> None:
        """A prefill leg with a ticket waits at its sender from now on."""
        transfer = self._transfers.get(ticket.ticket_id)
        if transfer is not None:
            transfer.sender, transfer.sender_core_id = body, core_id
            self._sending[body, core_id] = transfer

    def send(self, body: Body, action: SendKV) -> None:
        """The sequence has its blocks: what is computed goes out from now on."""
        transfer = self._sending.get((body, action.request_id))
        if transfer is None or not transfer.receiver.alive:
            reason = "the ticket was called off" if transfer is None else f"no link to {action.ticket.receiver_id}"
            self._later(body, KVSendFailed(action.request_id, reason))
            if transfer is not None:
                self._end(transfer)
            return
        transfer.opened = True
        network = self.network
        transfer.flow = network.start(
            body.replica_id, transfer.receiver.replica_id, transfer.num_bytes, lambda: self._all_sent(transfer)
        )
        self._computed_to(transfer, action.ready_tokens, 0.0)

    def step_began(self, body: Body, core_id: str, start: int, end: int, duration_s: float) -> None:
        """A step computes tokens `start` to `end - 1` of a sequence: its KV comes layer by layer."""
        transfer = self._sending.get((body, core_id))
        if transfer is None or transfer.flow is None:
            return
        first = max(start, transfer.ticket.skip_tokens)
        if end <= first or end <= transfer.known_tokens:
            return
        transfer.known_tokens = end
        num_bytes = (end - first) * transfer.bytes_per_token
        layer_s = duration_s / transfer.num_layers
        if transfer.num_layers > 1:
            self.clock.after(layer_s, self._layers, transfer, transfer.flow, num_bytes / duration_s)
        self.clock.after(duration_s, self._last_layer, transfer, transfer.flow, num_bytes / transfer.num_layers)

    def commit(self, body: Body, action: CommitKV) -> None:
        """All is computed; the first output token goes with the last byte."""
        transfer = self._sending.get((body, action.request_id))
        if transfer is None:
            return
        transfer.committed = action
        transfer.computed_at = self.clock.now
        self._computed_to(transfer, transfer.ticket.num_tokens, 0.0)
        if transfer.flow is not None and transfer.flow.sent >= transfer.num_bytes - 1.0:
            self._all_sent(transfer)

    def renew(self, body: Body, backlog_s: float) -> None:
        """Twice a second: receivers hear that their KV is still to come, and both sides that bytes get through."""
        for (owner, core_id), transfer in list(self._sending.items()):
            if owner is not body:
                continue
            flow = transfer.flow
            left = transfer.num_bytes if flow is None else int(transfer.num_bytes - flow.sent)
            rate = 0.0 if flow is None else flow.rate
            moved = flow is not None and flow.sent > transfer.told_sent
            if flow is not None:
                transfer.told_sent = flow.sent
            if transfer.committed is None:
                self._later(transfer.receiver, KVArriving(transfer.receiver_core_id, left, rate, backlog_s))
            elif moved:
                self._later(transfer.receiver, KVArriving(transfer.receiver_core_id, left, rate))
                self._later(body, KVArriving(core_id, left, rate))

    def probe(self, body: Body, action: ProbeLink) -> None:
        """Measure the link to a peer: a flow like any other."""
        began_s = self.clock.now

        def measured() -> None:
            took_s = self.clock.now - began_s + self.network.latency_s
            self._later(body, LinkMeasured(action.peer_id, action.num_bytes, took_s, probe=True))

        if action.peer_id in self.network.ingress:
            flow = self.network.start(body.replica_id, action.peer_id, action.num_bytes, measured)
            self.network.offer(flow, action.num_bytes, 0.0)

    # --- ends

    def stop(self, body: Body, action: StopKV) -> None:
        """Give a hand-off up and tell the peer; `KVClosed` answers."""
        sending = self._sending.get((body, action.request_id))
        receiving = self._receiving.get((body, action.request_id))
        for transfer, by_sender in ((sending, True), (receiving, False)):
            if transfer is None:
                continue
            self._end(transfer)
            if by_sender:
                finished = action.reason == FINISHED
                self.failed += not finished
                self._later(transfer.receiver, KVLost(transfer.receiver_core_id, action.reason, finished=finished))
            else:
                self.failed += 1
                if transfer.sender is not None and transfer.opened:
                    self._later(transfer.sender, KVSendFailed(transfer.sender_core_id, action.reason))
        self._later(body, KVClosed(action.request_id))

    def lost(self, body: Body) -> None:
        """A process is gone, and with it its transfers; the other ends notice."""
        for transfer in list(self._transfers.values()):
            if transfer.receiver is body:
                self._end(transfer)
                self.failed += 1
                if transfer.sender is not None and transfer.opened:
                    self._later(transfer.sender, KVSendFailed(transfer.sender_core_id, f"{body.replica_id} is gone"))
            elif transfer.sender is body:
                self._end(transfer)
                self.failed += 1
                self._later(transfer.receiver, KVLost(transfer.receiver_core_id, f"{body.replica_id} is gone"))

    def forget(self, body: Body, core_id: str) -> None:
        """A sequence ended at its sender before anything went out: its ticket is of no use. Idempotent."""
        transfer = self._sending.get((body, core_id))
        if transfer is not None and not transfer.opened:
            del self._sending[body, core_id]
            transfer.sender = None

    # --- on its way

    def _layers(self, transfer: Transfer, flow: Flow, supply: float) -> None:
        if transfer.flow is flow:
            self.network.offer(flow, 0.0, supply)

    def _last_layer(self, transfer: Transfer, flow: Flow, num_bytes: float) -> None:
        if transfer.flow is flow:
            self.network.offer(flow, num_bytes, 0.0)

    def _computed_to(self, transfer: Transfer, num_tokens: int, supply: float) -> None:
        """KV of the first `num_tokens` tokens is there, whole."""
        transfer.known_tokens = max(transfer.known_tokens, num_tokens)
        flow = transfer.flow
        if flow is not None:
            there = max(0, num_tokens - transfer.ticket.skip_tokens) * transfer.bytes_per_token
            self.network.offer(flow, max(0.0, there - flow.available), supply)

    def _all_sent(self, transfer: Transfer) -> None:
        """The last byte has left. Until the commit is said the receiver cannot go on."""
        commit, flow, sender = transfer.committed, transfer.flow, transfer.sender
        if commit is None or flow is None or sender is None or transfer.ticket.ticket_id not in self._transfers:
            return
        self._end(transfer)
        self.handed_over += 1
        now, latency_s = self.clock.now, self.network.latency_s
        began_s = now if flow.first_at is None else flow.first_at
        report = HandoffReport(
            num_bytes=transfer.num_bytes,
            transfer_s=now - began_s + latency_s,
            exposed_s=now - transfer.computed_at + latency_s,
            transport=TRANSPORT,
            prefill_replica_id=sender.replica_id,
        )
        received = KVReceived(transfer.receiver_core_id, commit.token_ids, commit.logprobs, report)
        self.clock.after(latency_s, _tell, transfer.receiver, received)
        peer_id = transfer.receiver.replica_id
        measured: LinkMeasured | None = None
        if flow.queued_bytes >= AT_LEAST_BYTES and flow.queued_s > 0.0:
            measured = LinkMeasured(peer_id, int(flow.queued_bytes), flow.queued_s)
        elif transfer.num_bytes >= AT_LEAST_BYTES and now > began_s:
            measured = LinkMeasured(peer_id, transfer.num_bytes, now - began_s, at_least=True)
        if measured is not None:
            self.clock.after(2 * latency_s, _tell, sender, measured)
        self.clock.after(2 * latency_s, _tell, sender, KVSent(transfer.sender_core_id, transfer.num_bytes))

    def _end(self, transfer: Transfer) -> None:
        self._transfers.pop(transfer.ticket.ticket_id, None)
        self._receiving.pop((transfer.receiver, transfer.receiver_core_id), None)
        if transfer.sender is not None:
            self._sending.pop((transfer.sender, transfer.sender_core_id), None)
        if transfer.flow is not None:
            self.network.stop(transfer.flow)

    def _later(self, body: Body, event: ReplicaEvent) -> None:
        self.clock.after(self.network.latency_s, _tell, body, event)


def _tell(body: Body, event: ReplicaEvent) -> None:
    if body.alive:
        body.hear(event)
