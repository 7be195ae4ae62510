"""Placement over the fleet as a pure function of events and time: which replica takes which request, and when.

`ClusterCore.handle(event, now)` takes past-tense events and returns imperative actions; it has no clock, does no I/O
and draws no random number, so the router and the simulator run this very code.

A request ends exactly once: with `RequestEnded` (the router says so), with `RefuseRequest` (this core says so), or
with `ClientLeft`. Whatever comes later for the same id only completes its line in `decisions()`.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.cluster_io import (
    ClientLeft,
    ClientRequestArrived,
    ClusterAction,
    ClusterEvent,
    FirstTokenSent,
    KVReserved,
    LeaderChanged,
    PrefillFinished,
    PrefixesChanged,
    ReplicaDrainRequested,
    ReplicaJoined,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    RoleRequested,
    TimePassed,
    ViewReported,
)
from contracts.errors import (
    Conflict,
    DeadlineExceeded,
    HandoffFailed,
    InvalidTransition,
    Overloaded,
    PhaseServeError,
    Unavailable,
    error_from,
)
from contracts.phase import Role
from contracts.plan import Decision, FleetDecision
from contracts.prefixes import PromptPrefix
from scheduling.cluster_availability import NO_REPLICA, why_not_ready
from scheduling.cluster_drains import repeated_drains, request_drain
from scheduling.cluster_members import is_final, refuse_unservable, replica_joined, replica_lost, view_reported
from scheduling.cluster_placement import Placement
from scheduling.cluster_requests import RequestStatus
from scheduling.cluster_snapshot import ClusterSnapshot, take_snapshot
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_planner import FleetPlanner
from scheduling.macro_scaling import MacroScaling
from scheduling.stream_moves import move_streams

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_PENDING = RequestStatus.PENDING
_DISPATCHED = RequestStatus.DISPATCHED
_STREAMING = RequestStatus.STREAMING
PASSING = frozenset({Overloaded.status, Unavailable.status})
"""Refusals by a replica that another one, or the same one later, may not repeat."""


class ClusterCore:
    """The cluster's decisions. One per router; `now` in seconds on one clock (going back counts as standing still)."""

    def __init__(self, config: ClusterCoreConfig) -> None:
        self.placement = place = Placement(config)
        self._leader: str | None = None
        self._scaling = MacroScaling(config.macro, place.fleet_decisions)
        self.planner = FleetPlanner(
            config, place.fleet, place.roles, place.fleet_decisions, place.demand, place.pending
        )

    def handle(self, event: ClusterEvent, now: float) -> list[ClusterAction]:
        """Take one event; returns what to do, in order. Raises `InvalidTransition` on an arrival whose id is in use.

        Events about requests or replicas that are not (or no longer) known, or of an earlier process of a replica,
        change nothing. After every event leases are renewed, after those about replicas or time pending requests tried.
        """
        place, fleet = self.placement, self.placement.fleet
        now = place.now = max(place.now, now)
        place.actions = []
        fleet.macro_turns.settle_sizes(now)
        if type(event) is ViewReported:  # most events are views
            view_reported(place, event)
            if len(place.pending):
                place.try_pending(fleet.get(event.view.replica_id))
        else:
            self._take(event)
        place.actions += place.leases.renew(fleet, now)
        return place.actions

    def _take(self, event: ClusterEvent) -> None:
        place = self.placement
        match event:
            case FirstTokenSent(request_id):
                self._first_token(request_id)
            case PrefillFinished(request_id):
                self._prefill_finished(request_id)
            case ClientRequestArrived():
                self._arrived(event)
            case RequestEnded():
                self._ended(event)
            case KVReserved(request_id, sequence):
                self._reserved(request_id, sequence)
            case RequestRefused():
                self._refused(event)
            case ClientLeft(request_id):
                self._client_left(request_id)
            case TimePassed():
                self._time_passed()
            case ReplicaJoined():
                replica_joined(place, event)
                place.try_pending()
            case ReplicaLost():
                replica_lost(place, event)
                place.try_pending()
            case PrefixesChanged():
                place.prefixes.heard(event, place.fleet.get(event.replica_id))
            case ReplicaDrainRequested(replica_id):
                request_drain(place, replica_id)
                refuse_unservable(place)
            case RoleRequested(replica_id, role, pinned):
                wish = "an operator wants it"
                place.actions += place.roles.request(replica_id, role, place.now, pinned=pinned, reason=wish)
            case LeaderChanged(leader):
                self._follow(leader)

    def _time_passed(self) -> None:
        place = self.placement
        self._expire()
        place.actions += repeated_drains(place)
        if self._leader is None:
            place.actions += self._scaling.propose(place.fleet, place.now)
            place.actions += place.roles.time_passed(place.now)
            place.actions += self.planner.time_passed(place.now)
        move_streams(place, self.planner.output_tokens(place.now))
        place.try_pending()

    def decisions(self) -> tuple[Decision, ...]:
        """The last decisions, newest first, each with its prediction and, once there is one, its outcome."""
        return self.placement.decisions.newest_first()

    def fleet_decisions(self) -> tuple[FleetDecision, ...]:
        """The last decisions about the fleet itself, newest first, each with its reason and the numbers."""
        return self.placement.fleet_decisions.newest_first()

    @property
    def pending_count(self) -> int:
        """Requests that wait for a replica."""
        return len(self.placement.pending)

    def ready(self, now: float) -> str | None:
        """None when a request could be served under the deployment's settings, else why not."""
        return why_not_ready(self.placement.fleet, self.placement.config, max(now, self.placement.now))

    def why_not_role(self, replica_id: str, role: Role) -> PhaseServeError | None:
        """Why `RoleRequested` would be refused now, or None: `UnknownReplica`, or `Conflict` with the reason."""
        return self._not_ours() or self.placement.roles.why_not(replica_id, role)

    def why_not_drain(self, replica_id: str) -> PhaseServeError | None:
        """Why an operator is refused `ReplicaDrainRequested` now, or None: as `why_not_role`."""
        return self._not_ours() or self.placement.roles.why_not_leave(replica_id)

    def snapshot(self, now: float) -> ClusterSnapshot:
        """The fleet, the pending queue and the totals, for `/decisions` and metrics."""
        return take_snapshot(self.placement, self.planner, max(now, self.placement.now))

    def name_prompt(self, token_ids: Sequence[int]) -> PromptPrefix | None:
        """What `ClientRequestArrived.prefix` is to be: the blocks of a prompt that replicas hold, None when none do."""
        return self.placement.prefixes.name(token_ids) if self.placement.config.prefix_affinity else None

    def _follow(self, leader: str | None) -> None:
        if leader == self._leader:
            return
        self._leader = leader
        place = self.placement
        if leader is not None:
            place.roles.abandon(leader, place.now)
        told = "this router leads" if leader is None else f"{leader} leads"
        place.fleet_decisions.note(place.now, "leader", f"{told}: it changes roles and proposes sizes")

    def _not_ours(self) -> PhaseServeError | None:
        return None if self._leader is None else Conflict(f"only the leading router does this: {self._leader}")

    def _arrived(self, event: ClientRequestArrived) -> None:
        place = self.placement
        if event.request_id in place.requests:
            raise InvalidTransition(
                f"request {event.request_id} arrived while it is {place.requests[event.request_id].status}"
            )
        record = place.admit(event)
        too_large = place.too_large(record)
        if too_large is not None:
            place.refuse(record, too_large)
            return
        self.planner.arrived(event, place.now)
        why = place.why_unservable(record)
        if why is not None:
            place.refuse(record, place.unavailable(why if place.fleet.num_open else NO_REPLICA))
            return
        place.place_or_pend(record)

    def _first_token(self, request_id: str) -> None:
        record = self.placement.requests.get(request_id)
        if record is not None and record.status is _DISPATCHED:
            self._scaling.first_token(record, self.placement.fleet, self.placement.now)
            record.move(_STREAMING, "first token")
            record.streams_since = self.placement.now

    def _prefill_finished(self, request_id: str) -> None:
        record = self.placement.requests.get(request_id)
        if record is not None and record.status is not _PENDING:
            self.placement.prefill_finished(record)

    def _reserved(self, request_id: str, sequence: int) -> None:
        record = self.placement.requests.get(request_id)
        if record is not None:
            self.placement.reserved(record, sequence)

    def _refused(self, event: RequestRefused) -> None:
        """One of the request's replicas refused it or gave it up: the other leg goes too, at once."""
        place = self.placement
        record = place.requests.get(event.request_id)
        if record is None or event.replica_id not in {record.replica_id, record.prefill_replica_id}:
            return
        if event.replica_id == record.prefill_replica_id and record.prefill_finished:
            return  # the decode leg speaks for it now
        place.cancel(record, but=event.replica_id if record.asked.num_sequences == 1 else None)
        error, broken = error_from(event.error), event.error.code == HandoffFailed.code
        # Failed hand-offs and replicas that are not there are bounded by the number of placements.
        record.refusals += not broken and event.error.status != Unavailable.status
        avoid = frozenset({event.replica_id})
        if broken:
            place.counts["handoff_failures"] += 1
            avoid = record.note_broken(event.replica_id)
        if (
            is_final(place, record, event.tokens_sent, broken)
            or event.error.status not in PASSING
            or (record.refusals > 1 and not record.tokens_sent)  # whose client reads already cannot come again later
        ):
            place.refuse(record, error)
        else:
            why = f"{event.replica_id} gave it up: {event.error.message}"
            place.place_anew(record, error_from(msgspec.structs.replace(event.error, message=why)), avoid)

    def _ended(self, event: RequestEnded) -> None:
        place = self.placement
        place.decisions.close(event.request_id, event.outcome)
        record = place.requests.get(event.request_id)
        if record is None:
            return
        place.counts["ended"] += 1
        if event.outcome.finish in {"stop", "length"}:
            asked = record.asked
            self.planner.ended(
                asked.prompt_tokens, event.outcome.output_tokens / max(1, asked.num_sequences), place.now
            )
        place.learn(record, event.outcome)
        place.forget(record, "ended")

    def _client_left(self, request_id: str) -> None:
        place = self.placement
        record = place.requests.get(request_id)
        if record is None:
            return
        place.counts["cancelled"] += 1
        place.cancel(record)
        place.note_end(record, "499 the client left")
        place.forget(record, "client left")

    def _expire(self) -> None:
        place = self.placement
        for record in place.pending.expired(place.now):
            waited_s = place.now - record.due_from
            self._scaling.gave_up(record, place.now)
            place.refuse(record, DeadlineExceeded(f"no replica could take the request within {waited_s:.1f} s"))
        limit_s = place.config.first_token_deadline_s
        overdue = []
        for record in place.requests.values():
            if place.now - record.arrived_at < limit_s:
                break  # they are in order of arrival
            if record.status is _DISPATCHED and place.now - record.due_from >= limit_s:
                overdue.append(record)
        for record in overdue:
            place.cancel(record)
            place.refuse(record, DeadlineExceeded(f"no first token within {limit_s:.1f} s"))
