"""The last decisions with their outcomes, for `/decisions`: a bounded ring by request id."""

from __future__ import annotations

import msgspec

from contracts.plan import Decision, Outcome, Plan
from scheduling.cluster_requests import RequestRecord


class DecisionRing:
    """At most `capacity` decisions, one per request: a request placed anew shows its last plan."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._by_id: dict[str, Decision] = {}

    def decide(
        self, record: RequestRecord, now: float, *, plan: Plan | None = None, refusal: str | None = None
    ) -> None:
        """Add or replace the decision of a request; it becomes the newest."""
        decision = Decision(
            request_id=record.request_id,
            at_s=now,
            prompt_tokens=record.asked.prompt_tokens,
            pending_s=now - record.due_from,
            plan=plan,
            refusal=refusal,
        )
        self._by_id.pop(decision.request_id, None)
        self._by_id[decision.request_id] = decision
        while len(self._by_id) > self._capacity:
            del self._by_id[next(iter(self._by_id))]

    def refuse(self, request_id: str, refusal: str) -> bool:
        """Note why the request was given up. False when its decision is not (or no longer) in the ring."""
        return self._amend(request_id, refusal=refusal)

    def plan_of(self, request_id: str) -> Plan | None:
        """The request's last plan, while it is kept."""
        known = self._by_id.get(request_id)
        return None if known is None else known.plan

    def close(self, request_id: str, outcome: Outcome) -> bool:
        """Note what came of the request. False when its decision is not (or no longer) in the ring."""
        return self._amend(request_id, outcome=outcome)

    def newest_first(self) -> tuple[Decision, ...]:
        """All decisions kept."""
        return tuple(reversed(self._by_id.values()))

    def _amend(self, request_id: str, *, refusal: str | None = None, outcome: Outcome | None = None) -> bool:
        known = self._by_id.get(request_id)
        if known is None:
            return False
        self._by_id[request_id] = msgspec.structs.replace(
            known, refusal=refusal or known.refusal, outcome=outcome or known.outcome
        )
        return True
