"""One prompt with its n sequences on its way through the fleet: where it is placed, and what has arrived of it."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from contracts.plan import Plan
from contracts.replica_io import SequenceOutput, SequenceUsage
from router.call import Call
from router.legs import Leg, PlacedSequence


@dataclass(slots=True)
class SequenceTrack:
    """When one sequence's tokens arrived at this router, and which (bounded by its `max_tokens`).

    They survive a placement: the next one goes on after them. `cached_tokens` of its prompt were cached where its first
    token was made, once the placement that made it has ended: a later one finds what this one computed.
    """

    first_s: float | None = None
    last_s: float = 0.0
    token_ids: list[int] = field(default_factory=list)
    ended: bool = False
    usage: SequenceUsage | None = None
    cached_tokens: int | None = None

    @property
    def num_tokens(self) -> int:
        """Tokens that arrived."""
        return len(self.token_ids)

    def tokens_arrived(self, token_ids: tuple[int, ...], now: float) -> float | None:
        """An output with tokens arrived. Seconds since the one before, None for the first."""
        gap_s = None if self.first_s is None else now - self.last_s
        if self.first_s is None:
            self.first_s = now
        self.last_s = now
        self.token_ids += token_ids
        return gap_s

    def used(self, usage: SequenceUsage) -> None:
        """A replica told what the sequence has used of it."""
        cached = self.cached_tokens
        self.usage = usage if cached is None else msgspec.structs.replace(usage, cached_tokens=cached)

    def left(self, placed: PlacedSequence) -> None:
        """A placement of it has ended."""
        if self.cached_tokens is None and placed.started:
            told = None if self.usage is None else self.usage.cached_tokens
            self.cached_tokens = told if placed.prefill_cached_tokens is None else placed.prefill_cached_tokens


@dataclass(slots=True, eq=False)
class Flight:
    """One prompt with its n sequences: one client request of the cluster core.

    `attempt` counts placements; the ids of the sequences change with it, so that late output of a placement that was
    given up is never taken for the current one's. `placed` holds the sequences of the current placement that have not
    ended, empty while there is none; `plan` is the last placement's. `first_s`: when its first token arrived.
    `ended`: the core knows nothing of it any more.
    """

    request_id: str
    prompt_index: int
    call: Call
    arrived_s: float
    attempt: int = 0
    plan: Plan | None = None
    tracks: list[SequenceTrack] = field(default_factory=list)
    placed: dict[int, PlacedSequence] = field(default_factory=dict)
    first_s: float | None = None
    ended: bool = False

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The prompt."""
        return self.call.generation.prompts[self.prompt_index].token_ids

    @property
    def max_tokens(self) -> int:
        """The bound on each sequence's output."""
        return self.call.generation.max_tokens[self.prompt_index]

    @property
    def tokens_sent(self) -> int:
        """Output tokens of its longest sequence so far."""
        return max(track.num_tokens for track in self.tracks)

    def place(self, plan: Plan) -> None:
        """Begin a placement of every sequence that has not ended, after what has arrived of it."""
        self.plan = plan
        self.attempt += 1
        wants_prompt_logprobs = self.call.generation.sampling.prompt_logprobs is not None
        self.placed = {}
        for number, track in enumerate(self.tracks):
            if track.ended:
                continue
            start = track.num_tokens
            self.placed[number] = PlacedSequence(
                number=number,
                sequence_id=self._sequence_id(number),
                start_index=start,
                decode=Leg(plan.replica_id, start),
                prefill_replica_id=plan.prefill_replica_id,
                waits_for_prefill=plan.prefill_replica_id is not None and wants_prompt_logprobs and start == 0,
            )

    def deliver(self, number: int, output: SequenceOutput) -> bool:
        """Take in what a sequence produced. True when a stop string ended it and the replica must be told."""
        track = self.tracks[number]
        stopped = self.call.deliver(self.prompt_index * len(self.tracks) + number, output)
        track.ended = stopped or output.finish is not None
        return stopped

    def needs(self, replica_id: str) -> bool:
        """Its current placement comes to nothing without that replica."""
        return any(placed.needs(replica_id) for placed in self.placed.values())

    def _sequence_id(self, number: int) -> str:
        """The id by which replicas know a sequence of the current placement."""
        suffix = f"#{number}" if len(self.tracks) > 1 else ""
        return f"{self.request_id}{suffix}" + (f"~{self.attempt}" if self.attempt > 1 else "")
