"""The router in the simulation: the real `ClusterCore` and the requests under way, one sequence each.

It feeds the core what `router.fleet`, `router.placements` and `router.deliveries` feed it live, in the same order;
every message to or from a replica takes `message_s`. Replicas say here what the wire would carry (`simulator.replica.Wire`).
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Protocol

import msgspec

from contracts.cluster_io import (
    CancelOn,
    ClientRequestArrived,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    DispatchPrefill,
    DrainReplica,
    FirstTokenSent,
    GrantLease,
    KVReserved,
    PrefillFinished,
    ProposeReplicas,
    RefuseRequest,
    ReplicaJoined,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    RevokeLease,
    SetRole,
    TimePassed,
    ViewReported,
)
from contracts.errors import ConfigError, ErrorInfo, Unavailable
from contracts.handoff import DecodeLeg, KVTicket, PrefillLeg
from contracts.plan import Outcome
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason, Request, SamplingParams
from contracts.views import ReplicaView
from scheduling.cluster_core import ClusterCore
from simulator.clock import Clock
from simulator.flight import Flight
from simulator.peers import PeerLists
from simulator.replica import SimulatedReplica
from simulator.workload import FILLER, Arrival


class Observer(Protocol):
    """Who writes down what clients see."""

    def gap(self, gap_s: float) -> None: ...
    def ended(self, flight: Flight, outcome: Outcome | None, error: ErrorInfo | None) -> None: ...
    def viewed(self, view: ReplicaView) -> None: ...
    def proposed(self, change: int, reason: str) -> None: ...


class RouterTimes(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long things take at the router, in seconds, as in `router.config.RouterConfig`: a message to or from a
    replica, the time between two `TimePassed`, the silence after which a replica is lost, the next try to reach it."""

    message_s: float = 0.0005
    tick_s: float = 0.1
    silence_s: float = 3.0
    hello_s: float = 0.5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            least = 0.0 if name == "message_s" else 1e-6
            if not least <= getattr(self, name) < math.inf:
                raise ConfigError(f"router.{name} must be positive", param=f"router.{name}")


class SimulatedRouter:
    """One router process. `bodies` are the replica processes that it is connected to, by name."""

    def __init__(self, core: ClusterCore, clock: Clock, observer: Observer, times: RouterTimes) -> None:
        self.core = core
        self.alive = True
        self.bodies: dict[str, SimulatedReplica] = {}
        self.flights: dict[str, Flight] = {}
        self._clock = clock
        self._observer = observer
        self._message_s = times.message_s
        self._times = times
        self._sampling = SamplingParams(temperature=0.0)
        self._by_sequence: dict[str, Flight] = {}
        self._peers = PeerLists()
        self._heard_at: dict[str, float] = {}
        clock.after(times.tick_s, self._tick)

    # --- clients

    def open(self, arrival: Arrival) -> None:
        """A client's request."""
        flight = Flight(arrival, f"r{arrival.number}")
        self.flights[flight.request_id] = flight
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
            )
        )

    def stop(self, error: ErrorInfo) -> None:
        """The process is gone; so is every answer under way."""
        self.alive = False
        for flight in list(self.flights.values()):
            self._forget(flight)
            self._observer.ended(flight, None, error)

    # --- replicas come and go

    def join(self, body: SimulatedReplica) -> None:
        """The handshake with a new process is over."""
        if not body.alive or not self.alive:
            return
        view = body.view()
        self.bodies[body.replica_id] = body
        self._heard_at[body.replica_id] = self._clock.now
        self._peers.joined(body.machine.identity, view.role)
        self._observer.viewed(view)
        self.feed(ReplicaJoined(body.machine.identity, view))
        self._tell_peers()

    def lost(self, replica_id: str, reason: str) -> None:
        """The connection is gone. Harmless when it was not there."""
        if self.bodies.pop(replica_id, None) is None:
            return
        self._peers.left(replica_id)
        here = [flight for flight in self.flights.values() if flight.needs(replica_id)]
        for flight in here:
            self._end_placement(flight)
        self.feed(ReplicaLost(replica_id, reason, {flight.request_id: flight.num_tokens for flight in here}))
        self._tell_peers()

    # --- what replicas say (simulator.replica.Wire)

    def produced(self, body: SimulatedReplica, outputs: tuple[SequenceOutput, ...]) -> None:
        self._clock.after(self._message_s, self._produced, body, outputs)

    def refused(self, body: SimulatedReplica, sequence_id: str, error: ErrorInfo) -> None:
        self._clock.after(self._message_s, self._refused, body, sequence_id, error)

    def reserved(self, body: SimulatedReplica, sequence_id: str, ticket: KVTicket) -> None:
        self._clock.after(self._message_s, self._reserved, body, sequence_id, ticket)

    def viewed(self, body: SimulatedReplica, view: ReplicaView) -> None:
        self._clock.after(self._message_s, self._viewed, body, view)

    def left(self, body: SimulatedReplica, reason: str) -> None:
        self._clock.after(self._message_s, self._left, body, reason)

    def _hears(self, body: SimulatedReplica) -> bool:
        """Whether the message comes over the present connection."""
        if self.bodies.get(body.replica_id) is not body:
            return False
        self._heard_at[body.replica_id] = self._clock.now
        return self.alive

    def _left(self, body: SimulatedReplica, reason: str) -> None:
        if self._hears(body):
            self.lost(body.replica_id, f"it said goodbye: {reason}")

    def _viewed(self, body: SimulatedReplica, view: ReplicaView) -> None:
        if not self._hears(body):
            return
        self.feed(ViewReported(view))
        if self._peers.role_of(view.replica_id) is not view.role:
            self._observer.viewed(view)
            self._peers.changed_role(view.replica_id, view.role)
            self._tell_peers()

    def _reserved(self, body: SimulatedReplica, sequence_id: str, ticket: KVTicket) -> None:
        flight = self._by_sequence.get(sequence_id) if self._hears(body) else None
        if flight is not None and flight.decode_on == body.replica_id and flight.ticket is None:
            flight.ticket = ticket
            self.feed(KVReserved(flight.request_id, 0))

    def _refused(self, body: SimulatedReplica, sequence_id: str, error: ErrorInfo) -> None:
        flight = self._by_sequence.get(sequence_id) if self._hears(body) else None
        if flight is not None:
            self._leg_failed(flight, body.replica_id, error)

    def _produced(self, body: SimulatedReplica, outputs: tuple[SequenceOutput, ...]) -> None:
        if not self._hears(body):
            return
        now = self._clock.now
        by_sequence, gap = self._by_sequence, self._observer.gap
        replica_id = body.replica_id
        for output in outputs:
            flight = by_sequence.get(output.request_id)
            if flight is None:
                continue
            if output.finish is None and output.usage is None and output.first_index == flight.num_tokens > 0:
                num_new = len(output.token_ids)  # the common case: a stream goes on
                if flight.num_tokens > flight.start_tokens and num_new:
                    flight.num_tokens += num_new
                    gap_s = now - flight.last_s
                    gap(gap_s)
                    if gap_s > flight.longest_gap_s:  # noqa: PLR1730 (once a token)
                        flight.longest_gap_s = gap_s
                    flight.last_s = now
                    continue
            self._take(flight, replica_id, output, now)

    def _take(self, flight: Flight, replica_id: str, output: SequenceOutput, now: float) -> None:
        """Anything but the next token of a stream: first tokens, ends, and what both legs say."""
        of_decode = flight.decode_on == replica_id
        if not of_decode and flight.prefill_on != replica_id:
            return
        if output.finish in (FinishReason.ERROR, FinishReason.CANCELLED):
            error = output.error or Unavailable(f"replica {replica_id} gave the request up").info()
            self._leg_failed(flight, replica_id, error)
            return
        if output.finish is not None and of_decode:
            flight.decode_on = None
        elif output.finish is not None:
            flight.prefill_on = None
        if output.finish is FinishReason.HANDED_OVER:
            if of_decode:
                return  # the sender's first token was the last one: its word of that comes
            flight.handed_over = True
        elif of_decode or output.finish is not None:
            flight.usage = output.usage or flight.usage
        self._tokens(flight, output, now)
        if output.finish in (FinishReason.STOP, FinishReason.LENGTH):
            self._succeeded(flight, output.finish)

    def _tokens(self, flight: Flight, output: SequenceOutput, now: float) -> None:
        num_new = output.first_index + len(output.token_ids) - flight.num_tokens
        if num_new <= 0:
            return
        assert num_new <= len(output.token_ids), f"{flight.sequence_id}: a token is missing before {output.first_index}"
        started = flight.started
        if flight.first_s is None:
            flight.first_s = now
        else:
            self._observer.gap(now - flight.last_s)
            flight.longest_gap_s = max(flight.longest_gap_s, now - flight.last_s)
        flight.last_s = now
        flight.num_tokens += num_new
        if not started:
            self.feed(FirstTokenSent(flight.request_id))
            self.feed(PrefillFinished(flight.request_id))

    def _leg_failed(self, flight: Flight, replica_id: str, error: ErrorInfo) -> None:
        """A leg ended by its replica's doing. After the first token the prefill leg's fate no longer matters."""
        if flight.decode_on == replica_id:
            flight.decode_on = None
        elif flight.prefill_on == replica_id:
            flight.prefill_on = None
            if flight.started or flight.handed_over:
                return
        else:
            return
        self._end_placement(flight)
        self.feed(RequestRefused(flight.request_id, replica_id, error, flight.num_tokens))

    # --- ends

    def _succeeded(self, flight: Flight, finish: FinishReason) -> None:
        self._end_placement(flight)
        usage, first_s, more = flight.usage, flight.first_s, flight.num_tokens - 1
        assert first_s is not None
        outcome = Outcome(
            ttft_s=first_s - flight.arrival.at_s,
            switch_wait_s=None if usage is None else usage.switch_wait_s,
            tpot_s=(flight.last_s - first_s) / more if more else None,
            output_tokens=flight.num_tokens,
            finish=finish.value,
            handoff=None if usage is None else usage.handoff,
        )
        self._forget(flight)
        self.feed(RequestEnded(flight.request_id, outcome))
        self._observer.ended(flight, outcome, None)

    def _end_placement(self, flight: Flight, but: str | None = None) -> None:
        """Nothing more is wanted of the present placement: replicas on which it still runs are told at once."""
        told = {flight.decode_on, flight.prefill_on}
        plan = flight.plan
        if flight.handed_over and plan is not None and flight.usage is None and flight.decode_on is not None:
            told.add(plan.prefill_replica_id)  # it may still hold the KV for the receiver
        flight.decode_on = flight.prefill_on = None
        self._by_sequence.pop(flight.sequence_id, None)
        for replica_id in sorted(name for name in told if name is not None and name != but):
            self._send(replica_id, SimulatedReplica.cancel, flight.sequence_id)

    def _forget(self, flight: Flight) -> None:
        flight.ended = True
        self._by_sequence.pop(flight.sequence_id, None)
        self.flights.pop(flight.request_id, None)

    # --- the core

    def feed(self, event: ClusterEvent) -> None:
        """Hand an event to the core and perform what it says; what that leads to is handed to it in turn."""
        events: deque[ClusterEvent] = deque([event])
        while events:
            for action in self.core.handle(events.popleft(), self._clock.now):
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
                return self._dispatch(action)
            case DispatchPrefill():
                return self._dispatch_prefill(action)
            case GrantLease(replica_id, duration_s):
                self._send(replica_id, SimulatedReplica.lease, duration_s)
            case RevokeLease(replica_id):
                self._send(replica_id, SimulatedReplica.lease, 0.0)
            case CancelOn(replica_id, request_id):
                self._cancel_on(replica_id, request_id)
            case RefuseRequest(request_id, error):
                flight = self.flights.get(request_id)
                if flight is not None:
                    self._end_placement(flight)
                    self._forget(flight)
                    self._observer.ended(flight, None, error)
            case SetRole(replica_id, role):
                self._send(replica_id, SimulatedReplica.assign, role)
            case DrainReplica(replica_id):
                self._send(replica_id, SimulatedReplica.drain)
            case ProposeReplicas(change, reason):
                self._observer.proposed(change, reason)
        return None

    def _cancel_on(self, replica_id: str, request_id: str) -> None:
        flight = self.flights.get(request_id)
        if flight is None:
            return
        if flight.needs(replica_id):
            self._end_placement(flight)
        elif flight.prefill_on == replica_id:
            flight.prefill_on = None
            self._send(replica_id, SimulatedReplica.cancel, flight.sequence_id)

    def _dispatch(self, action: Dispatch) -> ClusterEvent | None:
        flight = self.flights.get(action.request_id)
        if flight is None:
            return None
        self._end_placement(flight)
        flight.place(action.plan)
        plan, leg = action.plan, None
        if plan.prefill_replica_id is not None:
            leg = DecodeLeg(
                prefill_replica_id=plan.prefill_replica_id,
                expected_s=plan.handoff_expected_s,
                link_bytes_per_s=plan.prediction.link_bytes_per_s,
            )
        if not self._submit(flight, plan.replica_id, action.submit_index, leg):
            flight.decode_on = None
            return self._not_reached(flight, plan.replica_id)
        self._by_sequence[flight.sequence_id] = flight
        return None

    def _dispatch_prefill(self, action: DispatchPrefill) -> ClusterEvent | None:
        flight = self.flights.get(action.request_id)
        if flight is None or flight.ticket is None or flight.prefill_on is not None or flight.decode_on is None:
            return None
        if self._submit(flight, action.replica_id, action.submit_index, PrefillLeg(ticket=flight.ticket)):
            flight.prefill_on = action.replica_id
            return None
        self._end_placement(flight)
        return self._not_reached(flight, action.replica_id)

    def _submit(self, flight: Flight, replica_id: str, submit_index: int, leg: PrefillLeg | DecodeLeg | None) -> bool:
        arrival = flight.arrival
        sampling = self._sampling
        if sampling.max_tokens != arrival.max_tokens:
            sampling = self._sampling = SamplingParams(temperature=0.0, max_tokens=arrival.max_tokens)
        request = Request(
            request_id=flight.sequence_id,
            prompt_token_ids=arrival.prompt,
            sampling=sampling,
            slo=arrival.kind.slo,
            priority=arrival.kind.priority,
            waited_s=self._clock.now - arrival.at_s,
            submit_index=submit_index,
            output_token_ids=(FILLER,) * flight.num_tokens,
            leg=leg,
        )
        ends_at = len(arrival.prompt) + arrival.output_tokens - 1
        return self._send(replica_id, SimulatedReplica.submit, request, ends_at)

    def _not_reached(self, flight: Flight, replica_id: str) -> RequestRefused:
        error = Unavailable(f"replica {replica_id} cannot be reached").info()
        return RequestRefused(flight.request_id, replica_id, error, flight.num_tokens)

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
