"""Decode steps in which nothing has to be decided, in one go: what so many `StepDone` would do one after the other.

While every stream of a step merely goes on and nothing else lives in the replica, each step is followed by the same
streams' next one: the core's answer is known beforehand. A body that knows what its engine will give (the simulator's)
need not ask after each step then; it says afterwards how many there were. Every sum is taken step by step and in the
same order as `ReplicaCore.handle` takes it, so the state is the same to the last bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

import msgspec

from contracts.batch import Batch, Chunk
from contracts.phase import Phase
from contracts.replica_io import LeaseGranted, LeaseRevoked, Woken
from scheduling.replica_state import ReplicaState, StepInFlight
from scheduling.sequence import Sequence, Status
from scheduling.step_results import offer_to_cache

UNMOVED = (Woken, LeaseGranted, LeaseRevoked)
"""Events after which streams that merely go on still do: these do not ask about them."""


def coasts(state: ReplicaState) -> bool:
    """Whether the step in flight decodes all that lives here, and nothing else asks for a decision."""
    step = state.in_flight
    return (
        step is not None
        and step.batch.phase is Phase.DECODE
        and len(step.sequences) == len(state.decoding) == len(state.sequences)
        and state.config.pipeline_depth == 1
        and not state.forgotten
        and not state.transfer_actions
    )


def steps_ahead(state: ReplicaState, tokens: Seq[int]) -> int:
    """How many steps, from the one in flight on, may end with each of its streams going on: by output length and by
    KV blocks that are free for certain. `tokens` are the output tokens that every one of these steps would give."""
    if not coasts(state):
        return 0
    assert state.in_flight is not None
    sequences = state.in_flight.sequences
    if True in [token in s.stop_tokens for s, token in zip(sequences, tokens, strict=True)]:
        return 0
    blocks = state.ledger.num_free // len(sequences) * state.layout.block_size
    return min(blocks, min([s.max_output - s.num_output for s in sequences]) - 1)


def quiet_until(state: ReplicaState, now: float) -> float:
    """Steps that end before this time lead to nothing but the next step: no link is due for a probe."""
    return state.links.quiet_until(state.config, now)


def unmoved_by_time(state: ReplicaState, now: float) -> bool:
    """Whether `Woken` would come to nothing at this time: no step could begin, no transfer can run out of its time, and
    no link is due for a probe."""
    return (
        not (state.may_start and state.sequences)
        and not (state.receiving or state.sending or state.to_receive)
        and now < state.links.quiet_until(state.config, now)
    )


def coast(state: ReplicaState, tokens: Seq[int], durations_s: Seq[float], ended_at: Seq[float]) -> None:
    """The step in flight and those after it ended at these times; the next one is in flight from the last time on.

    `tokens` as in `steps_ahead`, which must have allowed as many steps.
    """
    step, num_steps = state.in_flight, len(ended_at)
    assert step is not None
    assert coasts(state)
    sequences, clock = step.sequences, state.clock
    shape = step.shape  # the step is over: that of those after it is made of it
    state.predictor.update_all(shape, durations_s)
    shape.decode_context += num_steps * len(sequences)
    for duration_s in durations_s:
        if clock.decode_owed_s <= 0.0:
            break
        clock.decode_owed_s = max(0.0, clock.decode_owed_s - duration_s)
    clock.starved_since = None
    for sequence, token in zip(sequences, tokens, strict=True):
        sequence.tokens += (token,) * num_steps
        sequence.last_token = (token,)
        sequence.tokens_sent += num_steps
        deadline, tpot_s = sequence.deadline, sequence.tpot_s
        for _ in range(num_steps):
            deadline += tpot_s
        sequence.deadline = deadline
    _fill_blocks(state, sequences, num_steps)
    for sequence in sequences:
        sequence.num_computed += num_steps
    state.counters.steps_done += num_steps
    state.next_step_index += num_steps
    batch = Batch(
        step_index=step.batch.step_index + num_steps,
        phase=Phase.DECODE,
        chunks=tuple([Chunk(s.request_id, s.last_token, s.num_computed, s.table, True) for s in sequences]),
    )
    state.in_flight = StepInFlight(batch, sequences, shape, ended_at[-1], None)


def go_on(state: ReplicaState, ends_at: Mapping[str, int], token: int) -> list[str]:
    """The step in flight is about to end: its streams that merely go on take their token at once, and are no part of
    the step any more, so that its result need not tell of them. The answer names them, in order.

    The engine is to give `token` to each stream whose position is below that in `ends_at`. None go on in this way where
    a block that became full would have to be offered to a prefix cache in its turn, or where a pipeline has several
    steps in flight.
    """
    step, names = state.in_flight, list[str]()
    if step is None or state.ledger.caching or state.config.pipeline_depth > 1:
        return names
    left: list[tuple[Sequence, Chunk]] = []
    token_ids = (token,)
    for sequence, chunk in zip(step.sequences, step.batch.chunks, strict=True):
        name, position = sequence.request_id, sequence.num_computed + 1
        if (
            sequence.status is Status.DECODING
            and position < ends_at.get(name, 0)
            and position < sequence.num_prompt + sequence.max_output - 1
            and token not in sequence.stop_tokens
            and not sequence.logprobs_left
        ):
            sequence.num_computed = position
            sequence.tokens.append(token)
            sequence.last_token = token_ids
            sequence.tokens_sent += 1
            sequence.deadline += sequence.tpot_s
            names.append(name)
        else:
            left.append((sequence, chunk))
    if names:
        step.sequences = [sequence for sequence, _ in left]
        step.batch = msgspec.structs.replace(step.batch, chunks=tuple([chunk for _, chunk in left]))
    return names


def _fill_blocks(state: ReplicaState, sequences: Seq[Sequence], num_steps: int) -> None:
    """Blocks that become full are offered to the cache when the step ends, and new ones taken for the next step."""
    block_size, ledger = state.layout.block_size, state.ledger
    full_after: dict[int, list[Sequence]] = {}
    for sequence in sequences:
        first = block_size - sequence.num_computed % block_size
        if first <= num_steps:
            for number in range(first, num_steps + 1, block_size):
                full_after.setdefault(number, []).append(sequence)
    for number in sorted(full_after):
        filled = full_after[number]
        if ledger.caching:
            for sequence in filled:
                position = sequence.num_computed + number
                offer_to_cache(state, sequence, position - 1, position)
        grown = [sequence for sequence in filled if sequence.num_computed + number >= sequence.capacity]
        for sequence, block in zip(grown, ledger.allocate(len(grown)), strict=True):
            sequence.add_block(block, block_size)
