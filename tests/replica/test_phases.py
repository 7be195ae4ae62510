"""Phase runners: which batch goes where, and what their counters say about where tokens were computed."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.batch import Batch, Chunk, SequenceStart, StepResult
from contracts.errors import EngineFailure
from contracts.phase import Phase
from contracts.request import SamplingParams
from replica.phases import Phases


class Echo:
    """An engine of which only `step` is used."""

    fails = False

    def step(self, batch: Batch) -> StepResult:
        if self.fails:
            raise EngineFailure("broken on purpose")
        return StepResult(step_index=batch.step_index)


def start(sequence_id: str, num_tokens: int, outputs: tuple[int, ...] = ()) -> SequenceStart:
    return SequenceStart(sequence_id, tuple(range(num_tokens)), SamplingParams(), outputs)


def chunk(sequence_id: str, first: int, num_tokens: int) -> Chunk:
    return Chunk(sequence_id, tuple(range(num_tokens)), first, (0,), True)


def batch(phase: Phase, *chunks: Chunk, started: tuple[SequenceStart, ...] = (), ended: tuple[str, ...] = ()) -> Batch:
    return Batch(step_index=1, phase=phase, chunks=chunks, started=started, ended=ended)


def phases_of() -> Any:
    return Phases(Echo())  # type: ignore[arg-type]


def test_an_alternating_replica_counts_each_phase_apart() -> None:
    phases = phases_of()
    phases.run(batch(Phase.PREFILL, chunk("a", 0, 6), started=(start("a", 10),)))
    done = phases.run(batch(Phase.PREFILL, chunk("a", 6, 4)))
    assert done.duration_s >= 0
    phases.run(batch(Phase.DECODE, chunk("a", 10, 1)))
    assert (phases.prefill.steps, phases.prefill.prompt_tokens) == (2, 10)
    assert (phases.decode.output_tokens, phases.decode.prompt_tokens) == (1, 0)
    assert phases.prefill.busy_s > 0


def test_a_mixed_step_tells_prompt_rows_from_output_rows() -> None:
    phases = phases_of()
    phases.run(batch(Phase.MIXED, chunk("a", 0, 1), started=(start("a", 1),)))
    phases.run(batch(Phase.MIXED, chunk("a", 1, 1), chunk("b", 0, 5), started=(start("b", 9),)))
    assert phases.prefill.prompt_tokens == 6
    assert phases.prefill.output_tokens == 1


def test_a_prompt_computed_again_after_preemption_counts_again() -> None:
    phases = phases_of()
    phases.run(batch(Phase.PREFILL, chunk("a", 0, 8), started=(start("a", 8),)))
    phases.run(batch(Phase.DECODE, chunk("a", 8, 1)))
    phases.run(batch(Phase.PREFILL, chunk("a", 0, 10), started=(start("a", 8, (1, 2)),), ended=("a",)))
    assert phases.prefill.prompt_tokens == 16
    assert phases.prefill.output_tokens == 2


def test_a_prompt_computed_by_a_decode_replica_shows() -> None:
    phases = phases_of()
    phases.run(batch(Phase.DECODE, chunk("a", 9, 1), started=(start("a", 10),)))
    phases.run(batch(Phase.DECODE, chunk("a", 10, 1)))
    assert phases.decode.prompt_tokens == 1
    assert phases.decode.output_tokens == 1


def test_a_failed_step_is_counted_and_raises_on() -> None:
    phases = phases_of()
    phases._prefill._engine.fails = True
    with pytest.raises(EngineFailure, match="on purpose"):
        phases.run(batch(Phase.MIXED, chunk("a", 0, 4), started=(start("a", 4),)))
    assert (phases.prefill.steps, phases.prefill.failed_steps) == (0, 1)
    assert phases.prefill.prompt_tokens == 0
