"""One mutable record per sequence, with one status and one transition table. No policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import StrEnum

from contracts.errors import InvalidTransition
from contracts.handoff import DecodeLeg, HandoffReport, PrefillLeg
from contracts.replica_io import SequenceUsage
from contracts.request import Request
from scheduling.kv_ticket import TicketLife


class Status(StrEnum):
    """Where a sequence is in its life.

    `RECEIVING`: its blocks are reserved, another replica fills them. `SENDING`: computed and handed over, but the
    receiver does not have all of it yet. `ENDING`: it ended, but the step in flight or a transfer that was not closed
    yet may still touch its blocks.
    """

    WAITING = "waiting"
    PREFILLING = "prefilling"
    RECEIVING = "receiving"
    SENDING = "sending"
    DECODING = "decoding"
    PREEMPTED = "preempted"
    ENDING = "ending"
    ENDED = "ended"


_NEXT: dict[Status, frozenset[Status]] = {
    Status.WAITING: frozenset({Status.PREFILLING, Status.RECEIVING, Status.ENDED}),
    Status.PREFILLING: frozenset({Status.DECODING, Status.SENDING, Status.PREEMPTED, Status.ENDING, Status.ENDED}),
    Status.RECEIVING: frozenset({Status.DECODING, Status.ENDING}),
    Status.SENDING: frozenset({Status.ENDING, Status.ENDED}),
    Status.DECODING: frozenset({Status.PREEMPTED, Status.ENDING, Status.ENDED}),
    Status.PREEMPTED: frozenset({Status.PREFILLING, Status.ENDED}),
    Status.ENDING: frozenset({Status.ENDED}),
    Status.ENDED: frozenset(),
}
_OVER = frozenset({Status.SENDING, Status.ENDING, Status.ENDED})


@dataclass(slots=True, eq=False)
class Sequence:
    """The life of one request inside one replica.

    `tokens` is prompt and output together; KV exists for positions below `num_computed`. A prefilling and a decoding
    sequence need the same thing, the tokens from `num_computed` on: a decode is the case of exactly one. That is also
    why a preempted sequence keeps its output: it is computed again as if it were prompt.
    `capacity` is the number of positions that `blocks` cover. `deadline` is the time at which the next token is due
    (infinite until the first decode step starts the clock); `deadline - now` is its slack.

    `made_room`: others of lower priority were preempted for it.

    `guarded`: it was accepted under an earlier role of the replica, see `scheduling.role_guard`.

    `sends`: its KV goes to another replica when it is computed. `receives`: its KV comes from another replica and is
    not here yet; a preempted one is computed here again. While `transfer_open` its blocks belong to a transfer, until
    `lease_until` at the latest. `lease_terms` is what the receiver's lease follows from: its length, the seconds until
    the sender is done, the bytes to come, and the link's bytes per second.
    """

    request: Request
    arrived_at: float
    max_output: int
    stop_tokens: frozenset[int]
    request_id: str = ""
    priority: int = 0
    waited_s: float = 0.0
    num_prompt: int = 0
    tokens: list[int] = field(default_factory=list)
    status: Status = Status.WAITING
    history: list[tuple[Status, float]] = field(default_factory=list)
    num_computed: int = 0
    blocks: list[int] = field(default_factory=list)
    table: tuple[int, ...] = ()
    capacity: int = 0
    hashes: list[bytes] = field(default_factory=list)
    last_token: tuple[int, ...] = ()
    announced: bool = False
    logprobs_left: bool = False
    logprobs_from: int = 1
    cached_guess: int = 0
    cached_tokens: int = 0
    deadline: float = math.inf
    tpot_s: float = 0.0
    ttft_deadline: float = 0.0
    scheduled_at: float | None = None
    first_token_at: float | None = None
    first_decode_at: float | None = None
    tokens_sent: int = 0
    preemptions: int = 0
    sends: bool = False
    receives: bool = False
    transfer_open: bool = False
    guarded: bool = False
    made_room: bool = False
    lease_until: float = math.inf
    lease_terms: tuple[float, float, int, float] = (0.0, 0.0, 0, 0.0)
    ticket: TicketLife | None = None
    handoff: HandoffReport | None = None

    def __post_init__(self) -> None:
        request = self.request
        self.request_id = request.request_id
        self.priority = request.priority
        self.waited_s = request.waited_s
        self.tokens = [*request.prompt_token_ids, *request.output_token_ids]
        self.num_prompt = len(request.prompt_token_ids)
        self.tokens_sent = self.num_output
        self.sends = isinstance(request.leg, PrefillLeg)
        self.receives = isinstance(request.leg, DecodeLeg)
        self.tpot_s = request.slo.tpot_s
        self.ttft_deadline = self.arrived_at - request.waited_s + request.slo.ttft_s
        # Who has the first output token has all prompt logprobs; of two legs the one that computes reports them.
        reports = request.sampling.prompt_logprobs is not None and not self.receives and not request.output_token_ids
        self.logprobs_left = reports and self.num_prompt > 1
        self.history.append((self.status, self.arrived_at))

    def move_to(self, status: Status, now: float) -> None:
        """Change the status. Raises `InvalidTransition` with the whole history."""
        if status not in _NEXT[self.status]:
            story = " -> ".join(f"{past}@{at:.6f}" for past, at in self.history)
            raise InvalidTransition(f"{self.request_id}: {self.status} cannot become {status} ({story})")
        self.status = status
        self.history.append((status, now))

    @property
    def is_over(self) -> bool:
        """Whether its end was said, blocks or not."""
        return self.status in _OVER

    @property
    def num_output(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - self.num_prompt

    @property
    def remaining(self) -> int:
        """Tokens that must be computed before the next output token."""
        return len(self.tokens) - self.num_computed

    def age_s(self, now: float) -> float:
        """Time since the request reached the router."""
        return now - self.arrived_at + self.waited_s

    def set_blocks(self, blocks: list[int], block_size: int) -> None:
        """Replace the block table."""
        self.blocks = blocks
        self.table = tuple(blocks)
        self.capacity = len(blocks) * block_size

    def add_block(self, block: int, block_size: int) -> None:
        """One more block at the end."""
        self.blocks.append(block)
        self.table = (*self.table, block)
        self.capacity += block_size

    def start_clock(self, now: float) -> None:
        """The first decode step begins: the TPOT clock starts (EcoServe §3.2), not at the first token.

        Output that was made elsewhere earns no slack here: its reader has had it for a while.
        """
        self.first_decode_at = now
        self.deadline = now + (self.tokens_sent - len(self.request.output_token_ids)) * self.tpot_s

    def usage(self, now: float) -> SequenceUsage:
        """What it used until `now`."""
        scheduled = now if self.scheduled_at is None else self.scheduled_at
        first_token = now if self.first_token_at is None else self.first_token_at
        switch_wait = None
        if self.first_token_at is not None and self.first_decode_at is not None:
            switch_wait = self.first_decode_at - self.first_token_at
        return SequenceUsage(
            prompt_tokens=self.num_prompt,
            cached_tokens=self.cached_tokens,
            output_tokens=self.num_output,
            queue_s=scheduled - self.arrived_at,
            prefill_s=max(0.0, first_token - scheduled),
            switch_wait_s=switch_wait,
            preemptions=self.preemptions,
            handoff=self.handoff,
        )
