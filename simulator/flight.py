"""One request at the simulated router: where its two legs are, and when its tokens came."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.handoff import KVTicket
from contracts.plan import Plan
from contracts.replica_io import SequenceUsage
from simulator.workload import Arrival


@dataclass(slots=True, eq=False)
class Flight:
    """From arrival to end. Times are those at which tokens reached the router, in seconds of the run.

    `num_tokens` output tokens have come; `start_tokens` of them before the present placement, of which `attempt` is the
    number. `decode_on` and `prefill_on` name replicas with a leg that still runs there (None: no leg, or it ended).
    """

    arrival: Arrival
    request_id: str
    attempt: int = 0
    sequence_id: str = ""
    plan: Plan | None = None
    start_tokens: int = 0
    decode_on: str | None = None
    prefill_on: str | None = None
    ticket: KVTicket | None = None
    handed_over: bool = False
    num_tokens: int = 0
    first_s: float | None = None
    last_s: float = 0.0
    longest_gap_s: float = 0.0
    first_gap_s: float | None = None
    usage: SequenceUsage | None = None

    @property
    def started(self) -> bool:
        """A token of the present placement has come."""
        return self.num_tokens > self.start_tokens

    def place(self, plan: Plan) -> None:
        """Begin a placement after what has come already; late words of an earlier one are not known by this id."""
        self.plan = plan
        self.attempt += 1
        self.sequence_id = self.request_id if self.attempt == 1 else f"{self.request_id}~{self.attempt}"
        self.start_tokens = self.num_tokens
        self.decode_on = plan.replica_id
        self.prefill_on = None
        self.ticket = None
        self.handed_over = False
        self.usage = None

    def needs(self, replica_id: str) -> bool:
        """Its present placement comes to nothing without that replica."""
        if self.decode_on == replica_id:
            return True
        plan = self.plan
        waits = not self.started and not self.handed_over and self.decode_on is not None
        return waits and plan is not None and plan.prefill_replica_id == replica_id
