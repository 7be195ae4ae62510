"""The life of one client request in the cluster core: one status, one transition table."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from contracts.cluster_io import ClientRequestArrived
from contracts.errors import InvalidTransition


class RequestStatus(StrEnum):
    """Where a client request stands. `STREAMING`: the first token of its placement went out."""

    PENDING = "pending"
    DISPATCHED = "dispatched"
    STREAMING = "streaming"
    ENDED = "ended"


TRANSITIONS = {
    RequestStatus.PENDING: frozenset({RequestStatus.DISPATCHED, RequestStatus.ENDED}),
    RequestStatus.DISPATCHED: frozenset({RequestStatus.STREAMING, RequestStatus.PENDING, RequestStatus.ENDED}),
    RequestStatus.STREAMING: frozenset({RequestStatus.PENDING, RequestStatus.ENDED}),
    RequestStatus.ENDED: frozenset[RequestStatus](),
}


@dataclass(slots=True, eq=False)
class Leg:
    """One request's part on one replica, with what it is predicted to take there: `prefill_s` of prefill (0 where only
    decode happens), of which `shared_s` is spared when it shares its steps, `waiting_tokens` of prompt, `blocks`.

    `submit_index` is that of the last sequence sent; `sent` are the numbers of the sequences of a prefill leg that
    were sent (each follows its reservation), `unsent` how many are still to be.
    """

    record: RequestRecord
    prefill_s: float
    waiting_tokens: int
    blocks: int
    submit_index: int = 0
    unsent: int = 0
    sent: set[int] = field(default_factory=set)
    shared_s: float = 0.0


@dataclass(slots=True, eq=False)
class RequestRecord:
    """One client request. `prefill_s` is the prediction for where it is (or, pending, would be) prefilled.

    `replica_id` is where it decodes, `prefill_replica_id` where another replica computes its prompt; the account of
    the latter ends when all sequences have their first token. `dispatches` counts placements, `refusals` those that a
    replica refused or gave up. `avoid` are replicas that refused it and have not sent a view since, `avoid_pairs`
    those (prefill, decode) between which its hand-off failed; `no_handoff`: no further one is tried. `best_effort`:
    placed without the promise of its targets.

    `cached` are the tokens of its prompt that replicas held at `cached_version` of the prefix index.

    `tokens_sent` are output tokens that the client has; a request that lost its place after that is pending since
    `resumed_at`, and counts its targets from there. `streams_since`: its present placement gave the first token then.
    `moved`: the cluster took it from a replica that would have gone on with it.
    """

    asked: ClientRequestArrived
    arrived_at: float
    prefill_s: float = 0.0
    status: RequestStatus = RequestStatus.PENDING
    replica_id: str | None = None
    prefill_replica_id: str | None = None
    dispatches: int = 0
    refusals: int = 0
    avoid: frozenset[str] = frozenset()
    avoid_pairs: frozenset[tuple[str, str]] = frozenset()
    no_handoff: bool = False
    best_effort: bool = False
    prefill_finished: bool = False
    tokens_sent: int = 0
    resumed_at: float | None = None
    streams_since: float | None = None
    moved: bool = False
    cached: Mapping[str, int] = field(default_factory=dict)
    cached_version: int = -1
    history: list[tuple[RequestStatus, str]] = field(default_factory=list)

    @property
    def request_id(self) -> str:
        """The id the router gave it."""
        return self.asked.request_id

    @property
    def tries(self) -> int:
        """Placements that count towards the most it may have: a move of our own takes none of them away."""
        return self.dispatches - self.moved

    @property
    def due_from(self) -> float:
        """When its targets began to run: at arrival, or when it lost its place while it streamed."""
        return self.arrived_at if self.resumed_at is None else self.resumed_at

    @property
    def prompt_tokens(self) -> int:
        """Tokens to compute before the next one: the prompt and what was generated before it lost its place."""
        return self.asked.prompt_tokens + self.tokens_sent

    @property
    def ttft_deadline_at(self) -> float:
        """When its next first token is due."""
        return self.due_from + self.asked.slo.ttft_s

    def note_broken(self, told_by: str) -> frozenset[str]:
        """A hand-off failed: not between these two again if there are others. Returns whom to avoid for now: the other
        side, for the one that told is alive."""
        if self.replica_id is None or self.prefill_replica_id is None:
            return frozenset({told_by})
        self.avoid_pairs |= {(self.prefill_replica_id, self.replica_id)}
        other = self.prefill_replica_id if told_by == self.replica_id else self.replica_id
        return frozenset({other})

    def move(self, status: RequestStatus, why: str) -> None:
        """Make one step of the table. Raises `InvalidTransition` with the history for any other."""
        if status not in TRANSITIONS[self.status]:
            taken = [f"{status} ({why})" for status, why in self.history]
            told = " -> ".join([*taken, f"{self.status} -> {status} ({why})"])
            raise InvalidTransition(f"request {self.request_id} cannot go from {self.status} to {status}: {told}")
        self.history.append((status, why))
        self.status = status
