"""The life of one client request in the cluster core: one status, one transition table."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from contracts.cluster_io import ClientRequestArrived
from contracts.errors import InvalidTransition


class RequestStatus(StrEnum):
    """Where a client request stands. `STREAMING`: its first token went out, so it can no longer be placed anew."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    STREAMING = "streaming"
    ENDED = "ended"


TRANSITIONS = {
    RequestStatus.PENDING: frozenset({RequestStatus.DISPATCHED, RequestStatus.ENDED}),
    RequestStatus.DISPATCHED: frozenset({RequestStatus.STREAMING, RequestStatus.PENDING, RequestStatus.ENDED}),
    RequestStatus.STREAMING: frozenset({RequestStatus.ENDED}),
    RequestStatus.ENDED: frozenset[RequestStatus](),
}


@dataclass(slots=True)
class RequestRecord:
    """One client request. `prefill_s` and `blocks` are predictions for where it is (or, pending, would be) placed.

    `dispatches` counts placements, `refusals` those that a replica refused. `avoid` is a replica that
    refused it and has not sent a view since. `best_effort`: placed without the promise of its targets.
    """

    asked: ClientRequestArrived
    arrived_at: float
    prefill_s: float = 0.0
    blocks: int = 0
    status: RequestStatus = RequestStatus.PENDING
    replica_id: str | None = None
    submit_index: int = 0
    dispatches: int = 0
    refusals: int = 0
    avoid: str | None = None
    best_effort: bool = False
    prefill_finished: bool = False
    history: list[str] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The id the router gave it."""
        return self.asked.request_id

    @property
    def ttft_deadline_at(self) -> float:
        """When its first token is due."""
        return self.arrived_at + self.asked.slo.ttft_s

    def move(self, status: RequestStatus, why: str) -> None:
        """Make one step of the table. Raises `InvalidTransition` with the history for any other."""
        if status not in TRANSITIONS[self.status]:
            told = " -> ".join([*self.history, f"{self.status} -> {status} ({why})"])
            raise InvalidTransition(f"request {self.request_id} cannot go from {self.status} to {status}: {told}")
        self.history.append(f"{status} ({why})")
        self.status = status
