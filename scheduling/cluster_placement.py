"""Carrying placements out: requests, replicas, pending queue and decisions kept straight around one plan at a time.

Where a request could go is judged by `scheduling.plan_choice`; when to ask is up to `scheduling.cluster_core`.
"""

from __future__ import annotations

from collections import Counter

from contracts.cluster_io import CancelOn, ClientRequestArrived, ClusterAction, Dispatch, RefuseRequest
from contracts.errors import InvalidRequest, Overloaded, PhaseServeError, Unavailable
from contracts.phase import Layout
from contracts.plan import Decision, Outcome, Plan
from contracts.views import ReplicaView
from scheduling.cluster_decisions import DecisionRing
from scheduling.cluster_fleet import Fleet, ReplicaRecord
from scheduling.cluster_leases import grant
from scheduling.cluster_pending import PendingQueue
from scheduling.cluster_requests import RequestRecord, RequestStatus
from scheduling.config import ClusterCoreConfig
from scheduling.output_reserve import OutputLengths
from scheduling.plan_choice import plan_request
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import blocks_needed, request_prefill_s
from scheduling.plan_reason import plan_of


class Placement:
    """Everything the cluster core remembers, and the few moves a request can make. Actions gather in `actions`."""

    def __init__(self, config: ClusterCoreConfig) -> None:
        self.config = config
        self.fleet = Fleet(config)
        self.pending = PendingQueue(config)
        self.requests: dict[str, RequestRecord] = {}
        self.decisions = DecisionRing(config.decisions_kept)
        self.counts: Counter[str] = Counter()
        self.actions: list[ClusterAction] = []
        self.now = 0.0
        self._outputs = OutputLengths()
        self._pass_loads: tuple[list[Load], list[Load]] | None = None

    def admit(self, asked: ClientRequestArrived) -> RequestRecord:
        """Remember a request that just arrived."""
        self.counts["arrived"] += 1
        record = RequestRecord(asked, self.now)
        record.prefill_s = min(
            (self._request_prefill_s(record, replica) for replica in self.fleet if replica.placeable), default=0.0
        )
        self.requests[asked.request_id] = record
        return record

    def place_or_pend(self, record: RequestRecord) -> None:
        """Place the request now, or queue it, or refuse it with 429 when the queue is full."""
        found = plan_request(self._ask(record), *self._loads(record), self.config)
        if isinstance(found, Candidate):
            self._dispatch(record, found)
            return
        overflow = self.pending.overflow(record)
        if overflow is None:
            self.pending.add(record)
            return
        message = f"overloaded: {overflow}; no replica could take the request at once ({found})"
        self.refuse(record, Overloaded(message, retry_after_s=self.retry_after_s()))

    def try_pending(self) -> None:
        """Place what can be placed of the pending requests, the most urgent first; none of them blocks another.

        While a punctual one still waits the late ones leave it what slack there is (see `plan_best_effort`).
        """
        tries = self.config.pending_tries
        punctual, late = self.pending.in_order(self.now)
        self._pass_loads = None
        placed = sum(self._try(record, yields=False) for record in punctual[:tries])
        for record in late[:tries]:
            self._try(record, yields=placed < len(punctual))

    def _try(self, record: RequestRecord, yields: bool) -> bool:
        if self._pass_loads is None or record.avoid is not None:
            loads = self._loads(record)
            self._pass_loads = loads if record.avoid is None else None
        else:
            loads = self._pass_loads
        found = plan_request(self._ask(record, yields), *loads, self.config)
        if not isinstance(found, Candidate):
            return False
        self.pending.remove(record.request_id)
        self._dispatch(record, found)
        self._pass_loads = None
        return True

    def view_came(self, replica: ReplicaRecord, view: ReplicaView) -> None:
        """Take a replica's newer view; requests that it refused may be offered to it again."""
        replica.report(view, self.now)
        for record in self.pending:
            if record.avoid == replica.replica_id:
                record.avoid = None

    def place_anew(self, record: RequestRecord, why: str, avoid: str | None = None) -> None:
        """A dispatched request lost its place before its first token: try elsewhere, a bounded number of times.

        `avoid` names a replica that may not get it again before its next view.
        """
        if record.dispatches >= self.config.max_dispatches:
            self.refuse(record, self.unavailable(f"given up after {record.dispatches} replicas: {why}"))
            return
        self.counts["placed_anew"] += 1
        record.avoid = avoid
        self._leave_replica(record)
        record.move(RequestStatus.PENDING, why)
        if self.fleet.num_placeable == 0:
            self.refuse(record, self.unavailable(why))
        else:
            self.place_or_pend(record)

    def wind_up(self, lost: ReplicaRecord, why: str) -> None:
        """A replica was dropped from the fleet. Requests on it without a token yet are placed anew, the rest end."""
        for record in list(lost.placed.values()):
            if record.status is RequestStatus.DISPATCHED:
                self.place_anew(record, f"replica {lost.replica_id} is gone: {why}")
            else:
                message = f"replica {lost.replica_id} was lost while it streamed the answer: {why}"
                self.refuse(record, self.unavailable(message))

    def refuse(self, record: RequestRecord, error: PhaseServeError) -> None:
        """Answer the client with `error` and forget the request."""
        self.counts["refused"] += 1
        self.actions.append(RefuseRequest(record.request_id, error.info()))
        self.note_end(record, f"{error.status} {error.message}")
        self.forget(record, f"refused with {error.status}")

    def cancel(self, record: RequestRecord) -> None:
        """Tell the request's replica, if it has one, that nobody waits for it."""
        if record.replica_id is not None:
            self.actions.append(CancelOn(record.replica_id, record.request_id))

    def note_end(self, record: RequestRecord, refusal: str) -> None:
        """Write down why the request ended without being served."""
        if not self.decisions.refuse(record.request_id, refusal):
            self.decisions.record(self._decision(record, refusal=refusal))

    def forget(self, record: RequestRecord, why: str) -> None:
        """The request has ended, wherever it was."""
        self.pending.remove(record.request_id)
        self._leave_replica(record)
        record.move(RequestStatus.ENDED, why)
        del self.requests[record.request_id]

    def learn(self, record: RequestRecord, outcome: Outcome) -> None:
        """Remember how long outputs are, from requests that ended by themselves."""
        if outcome.finish in {"stop", "length"}:
            self._outputs.observe(outcome.output_tokens // max(1, record.asked.num_sequences))

    def too_large(self, record: RequestRecord) -> InvalidRequest | None:
        """Why no live replica could ever take the request, or None."""
        asked = record.asked
        able = [replica for replica in self.fleet if replica.placeable]
        capacity = max((replica.view.num_blocks * replica.view.block_size for replica in able), default=0)
        if asked.prompt_tokens + 1 > capacity:
            message = f"prompt of {asked.prompt_tokens} tokens exceeds the largest KV cache of {capacity} tokens"
            return InvalidRequest(message, param="prompt")
        room = max((replica.identity.max_waiting for replica in able), default=0)
        if asked.num_sequences > room:
            message = f"{asked.num_sequences} choices for one prompt; no replica takes more than {room} at once"
            return InvalidRequest(message, param="n")
        return None

    def unavailable(self, why: str) -> Unavailable:
        """503 with the configured time to try again."""
        return Unavailable(why, retry_after_s=self.config.retry_after_s)

    def retry_after_s(self) -> float:
        """When trying again is worth while: the predicted prefill time ahead, shared by the replicas that take work."""
        ahead_s = self.pending.prefill_s + sum(record.backlog_s for record in self.fleet)
        return max(self.config.retry_after_s, ahead_s / max(1, self.fleet.num_placeable))

    def _loads(self, record: RequestRecord) -> tuple[list[Load], list[Load]]:
        return self.fleet.loads(self.now, self._expected_output(), record.avoid)

    def _expected_output(self) -> int:
        return self._outputs.expect(0, self.config.output_reserve_quantile)

    def _ask(self, record: RequestRecord, yields: bool = False) -> Ask:
        asked = record.asked
        return Ask(
            prompt_tokens=asked.prompt_tokens,
            num_sequences=asked.num_sequences,
            reserve_tokens=min(asked.max_tokens, self._expected_output()),
            slo=asked.slo,
            waited_s=self.now - record.arrived_at,
            yields=yields,
        )

    def _dispatch(self, record: RequestRecord, found: Candidate) -> None:
        target = self.fleet.get(found.load.replica_id)
        assert target is not None
        ask = self._ask(record)
        record.blocks = blocks_needed(ask, target.view.block_size)
        record.prefill_s = self._request_prefill_s(record, target)
        record.prefill_finished = False
        record.best_effort = found.best_effort
        record.dispatches += 1
        self.counts["dispatched"] += 1
        self.counts["best_effort"] += found.best_effort
        record.move(RequestStatus.DISPATCHED, f"to {target.replica_id}")
        target.place(record, self.now, self.config)
        plan = plan_of(ask, found, self.config.slack_rule)
        if found.layout is Layout.PHASED:
            self.fleet.pointer = target.replica_id
            self.actions.append(grant(target, self.now, self.config))
        self.actions.append(Dispatch(record.request_id, plan, record.submit_index))
        self.decisions.record(self._decision(record, plan=plan))

    def _request_prefill_s(self, record: RequestRecord, replica: ReplicaRecord) -> float:
        asked, view = record.asked, replica.view
        return request_prefill_s(
            view.cost, asked.prompt_tokens, asked.num_sequences, view.block_size, self.config.prefill_chunk
        )

    def _leave_replica(self, record: RequestRecord) -> None:
        """Take the request off its replica's account; harmless if the replica is gone or was replaced."""
        replica = self.fleet.get(record.replica_id)
        if replica is not None:
            replica.forget(record)
        record.replica_id = None

    def _decision(self, record: RequestRecord, plan: Plan | None = None, refusal: str | None = None) -> Decision:
        return Decision(
            request_id=record.request_id,
            at_s=self.now,
            prompt_tokens=record.asked.prompt_tokens,
            pending_s=self.now - record.arrived_at,
            plan=plan,
            refusal=refusal,
        )
