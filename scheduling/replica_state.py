"""Everything one replica's core remembers, and the few moves that keep its collections consistent. No policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from contracts.batch import Batch, SequenceStart
from contracts.handoff import TicketStatus
from contracts.kv import KVLayout
from contracts.phase import Phase, Role
from contracts.replica_io import ReplicaAction
from scheduling.block_ledger import BlockLedger, extend_hashes
from scheduling.config import ReplicaCoreConfig
from scheduling.kv_ticket import TicketLife
from scheduling.link_probing import LinkTable
from scheduling.load_seen import LoadSeen
from scheduling.output_reserve import OutputLengths
from scheduling.sequence import Sequence, Status
from scheduling.step_predictor import StepPredictor
from scheduling.step_shape import StepShape


@dataclass(slots=True)
class StepInFlight:
    """A step that runs now: its batch, the sequences of its chunks in the same order, and what it was allowed."""

    batch: Batch
    sequences: list[Sequence]
    shape: StepShape
    started_at: float
    overdraft_over_s: float | None
    owes: bool = False


@dataclass(slots=True)
class Counters:
    """Monotone counts since the start. Overdraft in seconds. `window_cuts`: how often
    streams got a step while a prompt of an alternating replica was half prefilled."""

    steps_done: int = 0
    preemptions: int = 0
    overdraft_s: float = 0.0
    window_cuts: int = 0
    prefix_hit_tokens: int = 0
    prefix_query_tokens: int = 0
    accepted: int = 0
    ended: int = 0
    handoffs_in: int = 0
    handoffs_out: int = 0
    handoffs_failed: int = 0
    kv_bytes_in: int = 0
    kv_bytes_out: int = 0
    checksum_errors: int = 0


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

    `waiting` (to be computed here, a preempted one too), `to_receive` (waiting for blocks to take KV in), `prefilling`,
    `receiving`, `sending` and `decoding` partition it by status, apart from ending ones.
    `computing` names, by hash, the blocks that a prefilling or receiving sequence is about to fill, and which one.
    `in_flight` is the oldest step that runs; `behind`, oldest first, are those that a pipeline has taken in after it,
    and `flying`, kept only where there may be several, names the sequences of all of them. `held` names streams that
    the last batch left out.
    `guarded` names those that `scheduling.role_guard` protects, until they are over.
    `transfer_actions` are what the event at hand asks of the data plane; `links` is keyed by peer.
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
    load: LoadSeen = field(default_factory=LoadSeen)
    counters: Counters = field(default_factory=Counters)
    sequences: dict[str, Sequence] = field(default_factory=dict)
    waiting: dict[str, Sequence] = field(default_factory=dict)
    prefilling: dict[str, Sequence] = field(default_factory=dict)
    decoding: dict[str, Sequence] = field(default_factory=dict)
    to_receive: dict[str, Sequence] = field(default_factory=dict)
    receiving: dict[str, Sequence] = field(default_factory=dict)
    sending: dict[str, Sequence] = field(default_factory=dict)
    links: LinkTable = field(default_factory=LinkTable)
    transfer_actions: list[ReplicaAction] = field(default_factory=list)
    computing: dict[bytes, Sequence] = field(default_factory=dict)
    guarded: set[str] = field(default_factory=set)
    waiting_tokens: int = 0
    in_flight: StepInFlight | None = None
    behind: list[StepInFlight] = field(default_factory=list)
    flying: set[str] = field(default_factory=set)
    held: set[str] = field(default_factory=set)
    next_step_index: int = 0
    forgotten: list[str] = field(default_factory=list)
    draining: bool = False
    said_drained: bool = False
    acked_submit_index: int = 0

    @property
    def num_running(self) -> int:
        """Sequences that hold blocks and will go on here."""
        return len(self.prefilling) + len(self.decoding) + len(self.receiving)

    @property
    def num_waiting(self) -> int:
        """Sequences that hold no blocks yet, or none any more."""
        return len(self.waiting) + len(self.to_receive)

    @property
    def num_in_flight(self) -> int:
        """Steps that run."""
        return 0 if self.in_flight is None else 1 + len(self.behind)

    @property
    def may_start(self) -> bool:
        """Whether one more step may be in flight."""
        return self.in_flight is None or 1 + len(self.behind) < self.config.pipeline_depth

    def in_step(self, sequence: Sequence) -> bool:
        """Whether a step in flight may write to its blocks."""
        if self.in_flight is None:
            return False
        if any(other is sequence for other in self.in_flight.sequences):
            return True
        return any(other is sequence for step in self.behind for other in step.sequences)

    def launch(self, step: StepInFlight) -> None:
        """The step runs from now on."""
        if self.in_flight is None:
            self.in_flight = step
        else:
            self.behind.append(step)
        if self.config.pipeline_depth > 1:
            self.flying.update(s.request_id for s in step.sequences)

    def land(self, step_index: int) -> StepInFlight | None:
        """The step has ended, in whatever order; None if no such step runs."""
        step = self.in_flight
        if step is not None and step.batch.step_index == step_index:
            self.in_flight = self.behind.pop(0) if self.behind else None
        else:
            step = next((other for other in self.behind if other.batch.step_index == step_index), None)
            if step is None:
                return None
            self.behind.remove(step)
        if self.flying:
            self.flying.difference_update(s.request_id for s in step.sequences)
        return step

    def enqueue(self, sequence: Sequence) -> None:
        """A new or preempted sequence waits."""
        queue = self.to_receive if sequence.receives else self.waiting
        queue[sequence.request_id] = sequence
        self.waiting_tokens += len(sequence.tokens)

    def start_prefill(self, sequence: Sequence, cached: list[int], now: float) -> None:
        """Leave the queue with `cached` blocks held already; all other blocks of its tokens are allocated."""
        self._leave_queue(sequence)
        self._take_blocks(sequence, cached, now)
        sequence.ticket = TicketLife(sequence.request_id, now)
        sequence.ticket.move_to(TicketStatus.SENDING, now)
        sequence.move_to(Status.PREFILLING, now)
        self.prefilling[sequence.request_id] = sequence

    def start_receive(self, sequence: Sequence, cached: list[int], now: float) -> None:
        """As `start_prefill`, but another replica fills the blocks."""
        self._leave_queue(sequence)
        self._take_blocks(sequence, cached, now)
        sequence.ticket = TicketLife(sequence.request_id, now)
        sequence.transfer_open = True
        sequence.move_to(Status.RECEIVING, now)
        self.receiving[sequence.request_id] = sequence

    def start_decode(self, sequence: Sequence, now: float) -> None:
        """All tokens but the newest are computed, here or elsewhere."""
        self._leave_running(sequence)
        sequence.receives = False
        assert sequence.ticket is not None
        sequence.ticket.move_to(TicketStatus.COMMITTED, now)
        sequence.move_to(Status.DECODING, now)
        self.decoding[sequence.request_id] = sequence

    def start_sending(self, sequence: Sequence, now: float) -> None:
        """All its KV is computed and promised to another replica; the request is over here."""
        self._leave_running(sequence)
        self.counters.ended += 1
        self._forget(sequence)
        assert sequence.ticket is not None
        sequence.ticket.move_to(TicketStatus.COMMITTED, now)
        sequence.move_to(Status.SENDING, now)
        self.sending[sequence.request_id] = sequence

    def preempt(self, sequence: Sequence, now: float) -> None:
        """Give all blocks back and wait again, output kept."""
        assert not sequence.transfer_open, f"{sequence.request_id}: its blocks belong to a transfer"
        self._leave_running(sequence)
        self._release(sequence)
        sequence.num_computed = 0
        sequence.preemptions += 1
        self.counters.preemptions += 1
        self._close_ticket(sequence, now, finished=False)
        sequence.move_to(Status.PREEMPTED, now)
        self.enqueue(sequence)

    def end(self, sequence: Sequence, now: float, *, finished: bool) -> None:
        """The sequence is over. While a step or a transfer may touch its blocks they stay held (`settle`)."""
        if sequence.status in {Status.WAITING, Status.PREEMPTED}:
            self._leave_queue(sequence)
        else:
            self._leave_running(sequence)
        if sequence.status is not Status.SENDING:
            self.counters.ended += 1
        self._close_ticket(sequence, now, finished=finished)
        self.guarded.discard(sequence.request_id)
        if sequence.transfer_open or self.in_step(sequence):
            sequence.move_to(Status.ENDING, now)
        else:
            self._bury(sequence, now)

    def settle(self, sequence: Sequence, now: float) -> None:
        """A step or a transfer that an ending sequence took part in is over: free its blocks if it was the last."""
        if not sequence.transfer_open and not self.in_step(sequence):
            self._bury(sequence, now)

    def announce(self, sequence: Sequence) -> SequenceStart:
        """What the engine must know once."""
        sequence.announced = True
        output = tuple(sequence.tokens[sequence.num_prompt :])
        return SequenceStart(sequence.request_id, sequence.request.prompt_token_ids, sequence.request.sampling, output)

    def _take_blocks(self, sequence: Sequence, cached: list[int], now: float) -> None:
        block_size = self.layout.block_size
        self.ledger.acquire(cached)
        fresh = self.ledger.allocate(self.layout.blocks_for(len(sequence.tokens)) - len(cached))
        sequence.set_blocks(cached + fresh, block_size)
        sequence.num_computed = len(cached) * block_size
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now
            sequence.cached_tokens = min(sequence.num_computed, sequence.num_prompt)
            self.counters.prefix_query_tokens += sequence.num_prompt
            self.counters.prefix_hit_tokens += sequence.cached_tokens
        if self.ledger.caching:
            extend_hashes(sequence.hashes, sequence.tokens, len(sequence.tokens), block_size)
            for block_hash in sequence.hashes[len(cached) :]:
                self.computing.setdefault(block_hash, sequence)

    def _close_ticket(self, sequence: Sequence, now: float, *, finished: bool) -> None:
        if sequence.ticket is not None:
            sequence.ticket.close(now, finished=finished)

    def _bury(self, sequence: Sequence, now: float) -> None:
        self._release(sequence)
        sequence.move_to(Status.ENDED, now)
        del self.sequences[sequence.request_id]
        self._forget(sequence)
        if sequence.sends:
            self.links.closed(sequence.request_id)

    def _forget(self, sequence: Sequence) -> None:
        """The engine may forget it with the next batch."""
        if sequence.announced:
            self.forgotten.append(sequence.request_id)
            sequence.announced = False

    def _release(self, sequence: Sequence) -> None:
        self.ledger.release(sequence.blocks)
        sequence.set_blocks([], self.layout.block_size)

    def _leave_queue(self, sequence: Sequence) -> None:
        del (self.to_receive if sequence.receives else self.waiting)[sequence.request_id]
        self.waiting_tokens -= len(sequence.tokens)

    def _leave_running(self, sequence: Sequence) -> None:
        if sequence.status is Status.DECODING:
            del self.decoding[sequence.request_id]
            return
        if sequence.status is Status.SENDING:
            del self.sending[sequence.request_id]
            return
        del (self.prefilling if sequence.status is Status.PREFILLING else self.receiving)[sequence.request_id]
        if self.ledger.caching:
            for block_hash in sequence.hashes:
                if self.computing.get(block_hash) is sequence:
                    del self.computing[block_hash]
