"""Turns a decision into a batch: which chunks run next, as one complete value."""

from __future__ import annotations

from contracts.batch import Batch, Chunk
from contracts.phase import Phase, Role
from scheduling.admission_rules import Budget
from scheduling.micro_batches import rows_of_next
from scheduling.phases import could_prefill, mixed_grants, rows_shape, separate_grants
from scheduling.prefill_picks import PrefillGrant, PrefillPicker
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.sequence import Sequence
from scheduling.step_shape import StepShape


def start_steps(state: ReplicaState, now: float) -> list[StepInFlight]:
    """Start the next step if none runs, or as many as a pipeline takes beside those that run."""
    started: list[StepInFlight] = []
    while state.may_start:
        step = next_step(state, now)
        if step is None:
            break
        state.launch(step)
        started.append(step)
    return started


def next_step(state: ReplicaState, now: float) -> StepInFlight | None:
    """The next step, or None when nothing can run."""
    if not state.sequences:
        return None
    if state.role is Role.MIXED and state.config.rule.budget is not Budget.PREFILL_FIRST:
        return _mixed_step(state, now)
    step = _prefill_step(state, now)
    if step is None and state.decoding:
        state.counters.window_cuts += state.clock.phase is Phase.PREFILL and bool(state.prefilling)
        decodes = rows_of_next(state, now, alone=True)
        # Decodes may all have been preempted in favour of prompts that hold the blocks; those run now.
        if decodes:
            return _step(state, decodes, rows_shape(state, decodes), None, now)
        step = _prefill_step(state, now)
    return step


def _prefill_step(state: ReplicaState, now: float) -> StepInFlight | None:
    for grant in separate_grants(state, now):
        picker = PrefillPicker(state, grant, StepShape())
        picker.fill(now)
        if picker.picks:
            return _step(state, [], picker.shape, (grant, picker), now)
    return None


def _mixed_step(state: ReplicaState, now: float) -> StepInFlight | None:
    decodes = rows_of_next(state, now, alone=not could_prefill(state))
    shape = rows_shape(state, decodes)
    for grant in mixed_grants(state, shape, now):
        picker = PrefillPicker(state, grant, shape)
        picker.fill(now)
        if picker.picks:
            return _step(state, decodes, shape, (grant, picker), now)
    return _step(state, decodes, shape, None, now) if decodes else None


def _step(
    state: ReplicaState,
    decodes: list[Sequence],
    shape: StepShape,
    prefill: tuple[PrefillGrant, PrefillPicker] | None,
    now: float,
) -> StepInFlight:
    """One step of this shape from decoding sequences (one token each) and picked prefill chunks."""
    sequences = list(decodes)
    chunks = [Chunk(s.request_id, s.last_token, s.num_computed, s.table, True) for s in decodes]
    # A sequence whose KV came from another replica is seen by this engine for the first time in a decode.
    started = [state.announce(s) for s in decodes if not s.announced]
    phase, overdraft, owes = Phase.DECODE, None, False
    if prefill is not None:
        grant, picker = prefill
        phase = Phase.MIXED if decodes else Phase.PREFILL
        overdraft, owes = grant.overdraft_over_s, grant.owes
        for sequence, tokens in picker.picks:
            sequences.append(sequence)
            chunks.append(_prefill_chunk(sequence, tokens))
            if not sequence.announced:
                started.append(state.announce(sequence))
    batch = Batch(
        step_index=state.next_step_index,
        phase=phase,
        chunks=tuple(chunks),
        started=tuple(started),
        ended=tuple(state.forgotten),
    )
    state.forgotten = []
    state.next_step_index += 1
    state.clock.phase = phase
    return StepInFlight(batch, sequences, shape, now, overdraft, owes)


def _prefill_chunk(sequence: Sequence, tokens: int) -> Chunk:
    start = sequence.num_computed
    end = start + tokens
    prompt = sequence.request.prompt_token_ids
    token_ids = prompt[start:end] if end <= len(prompt) else tuple(sequence.tokens[start:end])
    reports = sequence.logprobs_left and end >= sequence.logprobs_from and start < sequence.num_prompt - 1
    return Chunk(sequence.request_id, token_ids, start, sequence.table, end == len(sequence.tokens), reports)
