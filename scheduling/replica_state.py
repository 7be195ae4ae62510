"""Everything one replica's core remembers, and the few moves that keep its collections consistent. No policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from contracts.batch import Batch, SequenceStart
from contracts.kv import KVLayout
from contracts.phase import Phase, Role
from scheduling.block_ledger import BlockLedger, extend_hashes
from scheduling.config import ReplicaCoreConfig
from scheduling.output_reserve import OutputLengths
from scheduling.sequence import Sequence, Status
from scheduling.step_predictor import StepPredictor
from scheduling.step_shape import StepShape


@dataclass(slots=True)
class StepInFlight:
    """The one step that runs now: its batch, the sequences of its chunks in the same order, and what it was allowed."""

    batch: Batch
    sequences: list[Sequence]
    shape: StepShape
    started_at: float
    overdraft_over_s: float | None


@dataclass(slots=True)
class Counters:
    """Monotone counts since the start. Overdraft in seconds."""

    steps_done: int = 0
    preemptions: int = 0
    overdraft_s: float = 0.0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    accepted: int = 0
    ended: int = 0


@dataclass(slots=True)
class PhaseClock:
    """What an alternating replica remembers between steps. `starved_since`: since when streams get no decode step."""

    phase: Phase = Phase.DECODE
    lease_until: float = -math.inf
    starved_since: float | None = None
    decode_owed_s: float = 0.0


@dataclass(slots=True)
class ReplicaState:
    """All mutable state of one core. `sequences` holds every sequence that still owns something.

    `waiting`, `prefilling` and `decoding` partition it by status (a preempted one waits), apart from ending ones.
    `computing` names, by hash, the blocks that a prefilling sequence is about to fill, and which sequence that is.
    """

    config: ReplicaCoreConfig
    role: Role
    layout: KVLayout
    max_context: int
    eos_tokens: frozenset[int]
    ledger: BlockLedger
    predictor: StepPredictor
    lengths: OutputLengths = field(default_factory=OutputLengths)
    clock: PhaseClock = field(default_factory=PhaseClock)
    counters: Counters = field(default_factory=Counters)
    sequences: dict[str, Sequence] = field(default_factory=dict)
    waiting: dict[str, Sequence] = field(default_factory=dict)
    prefilling: dict[str, Sequence] = field(default_factory=dict)
    decoding: dict[str, Sequence] = field(default_factory=dict)
    computing: dict[bytes, Sequence] = field(default_factory=dict)
    waiting_tokens: int = 0
    in_flight: StepInFlight | None = None
    next_step_index: int = 0
    forgotten: list[str] = field(default_factory=list)
    draining: bool = False
    said_drained: bool = False
    acked_submit_index: int = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks and will go on."""
        return len(self.prefilling) + len(self.decoding)

    def enqueue(self, sequence: Sequence) -> None:
        """A new or preempted sequence waits."""
        self.waiting[sequence.request_id] = sequence
        self.waiting_tokens += len(sequence.tokens)

    def start_prefill(self, sequence: Sequence, cached: list[int], now: float) -> None:
        """Leave the queue with `cached` blocks held already; all other blocks of its tokens are allocated."""
        block_size = self.layout.block_size
        del self.waiting[sequence.request_id]
        self.waiting_tokens -= len(sequence.tokens)
        self.ledger.acquire(cached)
        fresh = self.ledger.allocate(self.layout.blocks_for(len(sequence.tokens)) - len(cached))
        sequence.set_blocks(cached + fresh, block_size)
        sequence.num_computed = len(cached) * block_size
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
            sequence.cached_tokens = sequence.num_computed
            self.counters.prefix_query_tokens += sequence.num_prompt
            self.counters.prefix_hit_tokens += sequence.num_computed
        sequence.move_to(Status.PREFILLING, now)
        self.prefilling[sequence.request_id] = sequence
        if self.ledger.caching:
            extend_hashes(sequence.hashes, sequence.tokens, len(sequence.tokens), block_size)
            for block_hash in sequence.hashes[len(cached) :]:
                self.computing.setdefault(block_hash, sequence)

    def start_decode(self, sequence: Sequence, now: float) -> None:
        """All tokens but the newest are computed."""
        self._leave_prefill(sequence)
        sequence.move_to(Status.DECODING, now)
        self.decoding[sequence.request_id] = sequence

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Give all blocks back and wait again, output kept."""
        self._leave_running(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        sequence.move_to(Status.PREEMPTED, now)
        self.enqueue(sequence)

    def end(self, sequence: Sequence, now: float, *, still_computing: bool) -> None:
        """The sequence is over. While the step in flight may write to its blocks they stay held (`settle`)."""
        if sequence.status in {Status.WAITING, Status.PREEMPTED}:
            del self.waiting[sequence.request_id]
            self.waiting_tokens -= len(sequence.tokens)
        else:
            self._leave_running(sequence)
        self.counters.ended += 1
        if still_computing:
            sequence.move_to(Status.ENDING, now)
        else:
            self._bury(sequence, now)

    def settle(self, sequence: Sequence, now: float) -> None:
        """The step that an ending sequence took part in is over."""
        self._bury(sequence, now)

    def announce(self, sequence: Sequence) -> SequenceStart:
        """What the engine must know once."""
        sequence.announced = True
        return SequenceStart(sequence.request_id, sequence.request.prompt_token_ids, sequence.request.sampling)

    def _bury(self, sequence: Sequence, now: float) -> None:
        self._release(sequence)
        sequence.move_to(Status.ENDED, now)
        del self.sequences[sequence.request_id]
        if sequence.announced:
            self.forgotten.append(sequence.request_id)

    def _release(self, sequence: Sequence) -> None:
        self.ledger.release(sequence.blocks)
        sequence.set_blocks([], self.layout.block_size)

    def _leave_running(self, sequence: Sequence) -> None:
        if sequence.status is Status.PREFILLING:
            self._leave_prefill(sequence)
        else:
            del self.decoding[sequence.request_id]

    def _leave_prefill(self, sequence: Sequence) -> None:
        del self.prefilling[sequence.request_id]
        if self.ledger.caching:
            for block_hash in sequence.hashes:
                if self.computing.get(block_hash) is sequence:
                    del self.computing[block_hash]
