"""Carrying placements out: requests, replicas, pending queue and decisions kept straight around one plan at a time.

Where a request could go is judged by `scheduling.plan_choice`; when to ask is up to `scheduling.cluster_core`.
"""

from __future__ import annotations

from collections import Counter

import msgspec

from contracts.cluster_io import (
    CancelOn,
    ClientRequestArrived,
    ClusterAction,
    Dispatch,
    DispatchPrefill,
    RefuseRequest,
)
from contracts.errors import InvalidRequest, Overloaded, PhaseServeError, Unavailable, error_from
from contracts.phase import Layout
from contracts.plan import Outcome
from scheduling.cluster_accuracy import Accuracy
from scheduling.cluster_ask import ask_of
from scheduling.cluster_availability import may_fall_back
from scheduling.cluster_decisions import DecisionRing
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_leases import PrefillLeases, grant
from scheduling.cluster_legs import fastest_prefill_s, legs_of
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord, RequestStatus
from scheduling.cluster_shortlist import Servable, loads_for, may_take
from scheduling.cluster_turns import Turns
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_decisions import FleetDecisions
from scheduling.fleet_workload import DemandEstimate
from scheduling.output_reserve import OutputLengths
from scheduling.plan_choice import plan_request
from scheduling.plan_inputs import Ask, Candidate, FleetLoads
from scheduling.plan_reason import plan_of
from scheduling.prefix_index import PrefixIndex
from scheduling.role_changes import RoleChanges

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_PHASED = Layout.PHASED
_DISPATCHED = RequestStatus.DISPATCHED
_ENDED = RequestStatus.ENDED
LOOK_FAR_S = 1.0
"""How often the most urgent that waits is judged against all of a large fleet: not only the few likely may take it."""


class Placement:
    """Everything the cluster core remembers, and the few moves a request can make. Actions gather in `actions`."""

    def __init__(self, config: ClusterCoreConfig) -> None:
        self.config = config
        self.fleet_decisions = FleetDecisions()
        self.fleet = Fleet(config, self.fleet_decisions)
        self.servable = Servable(self.fleet, config)
        self.leases = PrefillLeases(config)
        self.roles = RoleChanges(config, self.fleet, self.fleet_decisions)
        self.prefixes = PrefixIndex()
        self.turns = Turns(config, self.fleet)
        self.shares, self.pending = self.turns.shares, self.turns.pending
        self.requests: dict[str, RequestRecord] = {}
        self.decisions = DecisionRing(config.decisions_kept)
        self.accuracy = Accuracy()
        self.demand = DemandEstimate(config.planner.window_s)
        self.counts: Counter[str] = Counter()
        self.actions: list[ClusterAction] = []
        self.now = 0.0
        self._outputs = OutputLengths()
        self._expected_output = self._outputs.expect(0, config.output_reserve_quantile)
        self._pass_loads: FleetLoads | None = None
        self._seen: ReplicaRecord | None = None
        self._looked_far_at = 0.0

    def admit(self, asked: ClientRequestArrived) -> RequestRecord:
        """Remember a request that just arrived."""
        self.counts["arrived"] += 1
        record = RequestRecord(asked, self.now)
        self.requests[asked.request_id] = record
        self.shares.arrived(record, self.now)
        return record

    def place_or_pend(self, record: RequestRecord) -> None:
        """Place the request now, or queue it, or refuse it with 429 when the queue is full."""
        ask = self.ask(record)
        found = self.turns.why_wait(record, self.now) or plan_request(ask, self.loads(record), self.config)
        if isinstance(found, Candidate):
            self._dispatch(record, ask, found)
            return
        record.prefill_s = fastest_prefill_s(ask, self.fleet, self.config)
        overflow = self.pending.overflow(record)
        while overflow is not None and (victim := self.pending.victim(record)) is not None:
            message = "overloaded: its place was needed by a request that comes first"
            self.refuse(victim, Overloaded(message, retry_after_s=self.turns.retry_after_s(self.now)))
            overflow = self.pending.overflow(record)
        if overflow is None:
            self.turns.wait(record, self.now)
            return
        message = f"overloaded: {overflow}; no replica could take the request at once ({found})"
        self.refuse(record, Overloaded(message, retry_after_s=self.turns.retry_after_s(self.now)))

    def try_pending(self, seen: ReplicaRecord | None = None) -> None:
        """Place what can be placed of the pending requests, the most urgent first; none of them blocks another. Only
        `seen` has changed, if that is given: whoever has no place there is not tried.

        While a punctual one still waits the late ones leave it what slack there is (see `plan_best_effort`).
        """
        if not len(self.pending):
            return
        self._seen = seen
        tries = self.config.pending_tries
        punctual, late = self.pending.in_order(self.now)
        self._pass_loads = None
        if far := seen is None and self.now >= self._looked_far_at + LOOK_FAR_S:
            self._looked_far_at = self.now
        first = (punctual or late)[0]
        placed = sum(self._try(record, yields=False, far=far and record is first) for record in punctual[:tries])
        for record in late[:tries]:
            self._try(record, yields=placed < len(punctual), far=far and record is first)

    def _try(self, record: RequestRecord, yields: bool, far: bool) -> bool:
        if self.turns.too_much(record, self.now):
            return False
        ask = self.ask(record, yields)
        seen = None if self._seen is None else self.fleet.load(self._seen, self.now, self._expected_output)
        if seen is not None and not may_take(ask, seen, self.config):
            return False
        shared = not (record.avoid or record.asked.prefix or far)
        loads = self._pass_loads if shared and self._pass_loads is not None else self.loads(record, far)
        self._pass_loads = loads if shared else None
        found = plan_request(ask, loads, self.config)
        if not isinstance(found, Candidate):
            return False
        self.pending.remove(record.request_id)
        self._dispatch(record, ask, found)
        self.turns.looked_at(self.now)
        self._pass_loads = None
        return True

    def place_anew(self, record: RequestRecord, why: PhaseServeError, avoid: frozenset[str] = frozenset()) -> None:
        """A request lost its place: try elsewhere, a bounded number of times; `why` is what the client is told else.

        `avoid` names replicas that may not get it again before their next view. What the client has already stays
        valid: the request goes on from there.
        """
        if record.tries >= self.config.max_dispatches:
            message = f"given up after {record.dispatches} replicas: {why.message}"
            self.refuse(record, error_from(msgspec.structs.replace(why.info(), message=message)))
            return
        self.counts["placed_anew"] += 1
        record.avoid = avoid
        if record.avoid_pairs and record.tries == self.config.max_dispatches - 1:
            record.no_handoff = may_fall_back(record.asked, self.config)  # this is its last placement
        self._leave_replicas(record)
        self.shares.taken_back(record)
        if record.tokens_sent > 0:
            record.resumed_at = self.now
            self.counts["resumed"] += 1
        record.move(RequestStatus.PENDING, why.message)
        if self.why_unservable(record) is not None:
            self.refuse(record, why)
        else:
            self.place_or_pend(record)

    def move(self, record: RequestRecord, ask: Ask, found: Candidate, why: str) -> None:
        """A stream goes on where `found` says, from what its client has, its tries all left; where it was it ends."""
        self.counts["moved"] += 1
        self.cancel(record)
        self._leave_replicas(record)
        self.shares.taken_back(record)
        record.resumed_at = self.now
        record.moved, record.refusals = True, 0
        record.move(RequestStatus.PENDING, why)
        self._dispatch(record, ask, found)

    def reserved(self, record: RequestRecord, sequence: int) -> None:
        """The decode leg of one sequence has its blocks: send its prefill leg, once."""
        giver = self.fleet.get(record.prefill_replica_id)
        leg = None if giver is None else giver.placed.get(record.request_id)
        if giver is None or leg is None or leg.record is not record or sequence in leg.sent:
            return
        if not 0 <= sequence < record.asked.num_sequences:
            return
        leg.sent.add(sequence)
        leg.unsent -= 1
        leg.submit_index = giver.next_submit_index()
        self.actions.append(DispatchPrefill(record.request_id, sequence, giver.replica_id, leg.submit_index))

    def prefill_finished(self, record: RequestRecord) -> None:
        """Nothing of the request is left to prefill: the prefill leg is off its replica's account."""
        record.prefill_finished = True
        self.turns.prefilled(record, self.now)
        for replica_id in (record.replica_id, record.prefill_replica_id):
            if (replica := self.fleet.get(replica_id)) is not None:
                replica.touch()
        if (giver := self.fleet.get(record.prefill_replica_id)) is not None:
            giver.forget(record)

    def refuse(self, record: RequestRecord, error: PhaseServeError) -> None:
        """Answer the client with `error` and forget the request."""
        self.counts["refused"] += 1
        self.actions.append(RefuseRequest(record.request_id, error.info()))
        self.note_end(record, f"{error.status} {error.message}")
        self.forget(record, f"refused with {error.status}")

    def cancel(self, record: RequestRecord, but: str | None = None) -> None:
        """Tell the request's replicas, as far as they live, that nobody waits for it; `but` knows already."""
        for replica_id in (record.replica_id, record.prefill_replica_id):
            if replica_id is not None and replica_id != but and self.fleet.get(replica_id) is not None:
                self.actions.append(CancelOn(replica_id, record.request_id))

    def note_end(self, record: RequestRecord, refusal: str) -> None:
        """Write down why the request ended without being served."""
        if not self.decisions.refuse(record.request_id, refusal):
            self.decisions.decide(record, self.now, refusal=refusal)

    def forget(self, record: RequestRecord, why: str) -> None:
        """The request has ended, wherever it was."""
        self.pending.remove(record.request_id)
        self._leave_replicas(record)
        self.shares.left(record, self.now)
        self.turns.looked_at(self.now)
        record.move(_ENDED, why)
        del self.requests[record.request_id]

    def learn(self, record: RequestRecord, outcome: Outcome) -> None:
        """Remember how long outputs are, and how good the prediction was, from requests that ended by themselves; and
        what any request took."""
        self.shares.ended(record, outcome)
        if outcome.finish in {"stop", "length"}:
            plan = self.decisions.plan_of(record.request_id)
            if plan is not None and record.dispatches == 1:
                self.accuracy.observe(plan, outcome)
            self._outputs.observe(outcome.output_tokens // max(1, record.asked.num_sequences))
            self._expected_output = self._outputs.expect(0, self.config.output_reserve_quantile)

    def why_unservable(self, record: RequestRecord) -> str | None:
        """Why waiting cannot help the request: no replica is left that could serve it as demanded. Else None."""
        return self.servable.why_not(record.asked)

    def too_large(self, record: RequestRecord) -> InvalidRequest | None:
        """Why no live replica could ever take the request, or None."""
        return self.servable.too_large(record.asked)

    def unavailable(self, why: str) -> Unavailable:
        """503 with the configured time to try again."""
        return Unavailable(why, retry_after_s=self.config.retry_after_s)

    def loads(self, record: RequestRecord, far: bool = False) -> FleetLoads:
        """The replicas that are looked at for it; `far`: all of a large fleet."""
        if far:
            return self.fleet.loads(self.now, self._expected_output, record.avoid)
        return loads_for(record, self.fleet, self.prefixes, self.now, self._expected_output)

    def ask(self, record: RequestRecord, yields: bool = False) -> Ask:
        """The request as it asks for a place now."""
        cached = self.prefixes.cached_for(record)
        return ask_of(record, self.now, self._expected_output, cached, self.config, yields=yields)

    def _dispatch(self, record: RequestRecord, ask: Ask, found: Candidate) -> None:
        target = self.fleet.get(found.load.replica_id)
        assert target is not None
        giver = None if found.handoff is None else self.fleet.get(found.handoff.giver.replica_id)
        record.prefill_finished = False
        record.best_effort = found.best_effort
        record.dispatches += 1
        self.counts["dispatched"] += 1
        self.counts[found.layout.value] += 1
        self.counts["best_effort"] += found.best_effort
        self.counts["fallbacks"] += found.fallback is not None
        record.move(_DISPATCHED, f"to {target.replica_id}")
        record.replica_id = target.replica_id
        record.prefill_replica_id = None if giver is None else giver.replica_id
        if found.layout is _PHASED:
            found = msgspec.structs.replace(found, switch_wait_s=target.switch_wait_s(record))
            self.fleet.macro_turns.take(target, self.now)
        here, elsewhere = legs_of(record, ask, target, giver, self.config)
        self.turns.placed(record, ask, found)
        target.place(here, self.now, self.config)
        if giver is not None and elsewhere is not None:
            giver.announce(elsewhere)
        plan = plan_of(ask, found, self.config.admission)
        if found.layout is _PHASED:
            self.actions.append(grant(target, self.now, self.config))
        self.actions.append(Dispatch(record.request_id, plan, here.submit_index))
        self.decisions.decide(record, self.now, plan=plan)
        if self.config.planner.enabled and record.dispatches == 1:
            self.demand.placed(plan.cached_tokens, self.now)

    def _leave_replicas(self, record: RequestRecord) -> None:
        """Take the request off its replicas' accounts; harmless if one is gone or was replaced."""
        for replica_id in (record.replica_id, record.prefill_replica_id):
            if (replica := self.fleet.get(replica_id)) is not None:
                replica.forget(record)
        record.replica_id = record.prefill_replica_id = None
