"""The router in the simulation: the real `ClusterCore` and the requests under way, one sequence each.

It feeds the core what `router.fleet` feeds it live, in the same order; every message to or from a replica takes
`RouterTimes.message_s`. Replicas say here what the wire would carry (`simulator.wire.Wire`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence

from contracts.cluster_io import (
    CancelOn,
    ClientRequestArrived,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    DispatchPrefill,
    DrainReplica,
    GrantLease,
    PrefixesChanged,
    ProposeReplicas,
    RefuseRequest,
    ReplicaJoined,
    ReplicaLost,
    RevokeLease,
    SetRole,
    TimePassed,
    ViewReported,
)
from contracts.errors import ErrorInfo
from contracts.handoff import KVTicket
from contracts.prefixes import PrefixChange
from contracts.replica_io import SequenceOutput
from contracts.views import ReplicaView
from scheduling.cluster_core import ClusterCore
from scheduling.peer_lists import PeerLists
from simulator.clock import Clock
from simulator.deliveries import Deliveries
from simulator.flight import Flight
from simulator.observer import Observer, RouterTimes
from simulator.placements import Placements
from simulator.replica import SimulatedReplica
from simulator.transfers import Body
from simulator.workload import Arrival


class SimulatedRouter:
    """One router process. `bodies` are the replica processes that it is connected to, by name."""

    def __init__(self, core: ClusterCore, clock: Clock, observer: Observer, times: RouterTimes) -> None:
        self.core = core
        self.alive = True
        self.bodies: dict[str, SimulatedReplica] = {}
        self._clock = clock
        self._observer = observer
        self._message_s = times.message_s
        self._times = times
        self.placements = Placements(clock, self._send)
        self._deliveries = Deliveries(self.placements, clock, observer, self.feed)
        self._peers = PeerLists()
        self._heard_at: dict[str, float] = {}
        clock.after(times.tick_s, self._tick)

    # --- clients

    def open(self, arrival: Arrival) -> None:
        """A client's request."""
        flight = Flight(arrival, f"r{arrival.number}")
        self.placements.flights[flight.request_id] = flight
        kind = arrival.kind
        self.feed(
            ClientRequestArrived(
                request_id=flight.request_id,
                prompt_tokens=len(arrival.prompt),
                max_tokens=arrival.max_tokens,
                slo=kind.slo,
                priority=kind.priority,
                layout=kind.layout,
                key=arrival.key,
                prefix=self.core.name_prompt(arrival.prompt) if arrival.shares_prefix else None,
            )
        )

    def stop(self, error: ErrorInfo) -> None:
        """The process is gone; so is every answer under way, but for what was heard of it."""
        for body in self.bodies.values():
            body.say_on()
        self.alive = False
        for flight in list(self.placements.flights.values()):
            self.placements.forget(flight)
            self._observer.ended(flight, None, error)

    # --- replicas come and go

    def join(self, body: SimulatedReplica) -> None:
        """The handshake with a new process is over."""
        if not body.alive or not self.alive:
            return
        view = body.view()
        self.bodies[body.replica_id] = body
        body.connect(self)
        self._heard_at[body.replica_id] = self._clock.now
        self._peers.joined(body.parts.identity, view.role)
        self._observer.viewed(view)
        self.feed(ReplicaJoined(body.parts.identity, view))
        self._tell_peers()

    def lost(self, replica_id: str, reason: str) -> None:
        """The connection is gone. Harmless when it was not there."""
        if self.bodies.pop(replica_id, None) is None:
            return
        self._peers.left(replica_id)
        here = self.placements.that_need(replica_id)
        for flight in here:
            self.placements.end(flight)
        self.feed(ReplicaLost(replica_id, reason, {flight.request_id: flight.num_tokens for flight in here}))
        self._tell_peers()

    # --- what replicas say (simulator.wire.Wire)

    def produced(self, body: Body, outputs: tuple[SequenceOutput, ...], streams: Sequence[str]) -> None:
        self._clock.after(self._message_s, self._produced, body, outputs, streams)

    def went_on(self, body: Body, sequence_ids: Sequence[str], ended_at: Sequence[float]) -> None:
        heard_at = [end_s + self._message_s for end_s in ended_at]
        here = bisect_right(heard_at, self._clock.now)
        if here == len(heard_at):
            self._clock.count(1)
        else:
            self._clock.at(heard_at[-1], self._went_on, body, sequence_ids, heard_at[here:])
        if here:
            self._went_on(body, sequence_ids, heard_at[:here])

    def refused(self, body: Body, sequence_id: str, error: ErrorInfo) -> None:
        self._clock.after(self._message_s, self._refused, body, sequence_id, error)

    def reserved(self, body: Body, sequence_id: str, ticket: KVTicket) -> None:
        self._clock.after(self._message_s, self._reserved, body, sequence_id, ticket)

    def viewed(self, body: Body, view: ReplicaView) -> None:
        self._clock.after(self._message_s, self._viewed, body, view)

    def cached(self, body: Body, change: PrefixChange) -> None:
        self._clock.after(self._message_s, self._cached, body, change)

    def left(self, body: Body, reason: str) -> None:
        self._clock.after(self._message_s, self._left, body, reason)

    def _hears(self, body: Body, at_s: float | None = None) -> bool:
        """Whether the message (that came now, or at a time before) comes over the present connection."""
        if self.bodies.get(body.replica_id) is not body:
            return False
        self._heard_at[body.replica_id] = self._clock.now if at_s is None else at_s
        return self.alive

    def _left(self, body: Body, reason: str) -> None:
        if self._hears(body):
            self.lost(body.replica_id, f"it said goodbye: {reason}")

    def _viewed(self, body: Body, view: ReplicaView) -> None:
        if not self._hears(body):
            return
        self.feed(ViewReported(view))
        if self._peers.role_of(view.replica_id) is not view.role:
            self._observer.viewed(view)
            self._peers.changed_role(view.replica_id, view.role)
            self._tell_peers()

    def _cached(self, body: Body, change: PrefixChange) -> None:
        if self._hears(body):
            self.feed(PrefixesChanged(body.replica_id, body.incarnation, change))

    def _produced(self, body: Body, outputs: tuple[SequenceOutput, ...], streams: Sequence[str]) -> None:
        if self._hears(body):
            if streams:
                self._deliveries.went_on(body.replica_id, streams, (self._clock.now,))
            self._deliveries.produced(body.replica_id, outputs)

    def _went_on(self, body: Body, sequence_ids: Sequence[str], heard_at: Sequence[float]) -> None:
        if self._hears(body, heard_at[-1]):
            self._deliveries.went_on(body.replica_id, sequence_ids, heard_at)

    def _reserved(self, body: Body, sequence_id: str, ticket: KVTicket) -> None:
        if self._hears(body):
            self._deliveries.reserved(body.replica_id, sequence_id, ticket)

    def _refused(self, body: Body, sequence_id: str, error: ErrorInfo) -> None:
        if self._hears(body):
            self._deliveries.refused(body.replica_id, sequence_id, error)

    # --- the core

    def feed(self, event: ClusterEvent) -> None:
        """Hand an event to the core and perform what it says; what that leads to is handed to it in turn."""
        events = [event]
        for known in events:  # it grows by the answers
            for action in self.core.handle(known, self._clock.now):
                answer = self._perform(action)
                if answer is not None:
                    events.append(answer)

    def _tick(self) -> None:
        if self.alive:
            self.feed(TimePassed())
            self._check_silence()
            self._clock.after(self._times.tick_s, self._tick)

    def _check_silence(self) -> None:
        """A replica that says nothing is lost, and found again once it answers: it ends then what it had from here."""
        silent_since = self._clock.now - self._times.silence_s
        for replica_id, body in list(self.bodies.items()):
            if self._heard_at[replica_id] < silent_since:
                self.lost(replica_id, f"silent for {self._times.silence_s:g} s")
                self._say_hello(body)

    def _say_hello(self, body: SimulatedReplica) -> None:
        if not self.alive or not body.alive:
            return
        if body.frozen:
            self._clock.after(self._times.hello_s, self._say_hello, body)
            return
        body.forget(list(body.core.state.sequences))
        self.join(body)

    def _perform(self, action: ClusterAction) -> ClusterEvent | None:
        match action:
            case Dispatch():
                return self.placements.begin(action)
            case DispatchPrefill():
                return self.placements.begin_prefill(action)
            case GrantLease(replica_id, duration_s):
                self._send(replica_id, SimulatedReplica.lease, duration_s)
            case RevokeLease(replica_id):
                self._send(replica_id, SimulatedReplica.lease, 0.0)
            case CancelOn(replica_id, request_id):
                self.placements.end_on(replica_id, request_id)
            case RefuseRequest(request_id, error):
                flight = self.placements.flights.get(request_id)
                if flight is not None:
                    self.placements.end(flight)
                    self.placements.forget(flight)
                    self._observer.ended(flight, None, error)
            case SetRole(replica_id, role):
                self._send(replica_id, SimulatedReplica.assign, role)
            case DrainReplica(replica_id):
                self._send(replica_id, SimulatedReplica.drain)
            case ProposeReplicas():
                self._observer.proposed(action)
        return None

    def _tell_peers(self) -> None:
        for replica_id, peers in self._peers.news():
            self._send(replica_id, SimulatedReplica.set_peers, peers)

    def _send(self, replica_id: str, say: Callable[..., None], *words: object) -> bool:
        body = self.bodies.get(replica_id)
        if body is None:
            return False
        self._clock.after(self._message_s, _deliver, body, say, words)
        return True


def _deliver(body: SimulatedReplica, say: Callable[..., None], words: tuple[object, ...]) -> None:
    if body.alive:
        say(body, *words)
