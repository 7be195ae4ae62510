"""Which phase runner performs a batch, how long it took, and what was computed in each phase.

Every role has both runners: a role says what a replica does by choice, and every one holds the full model. A decode
replica that had to prefill (a peer died, a sequence was preempted) shows in the counts.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import decode_workers.phase_runner as decode
import prefill_workers.phase_runner as prefill
from contracts.batch import Batch
from contracts.engine import Engine
from contracts.replica_io import StepDone
from prefill_workers.kv_giver import KVGiver
from scheduling.row_census import RowCensus, RowCount


@dataclass(slots=True)
class PhaseCounters:
    """What the steps of one phase did. `output_tokens` are decode rows, also of mixed steps, and recomputed ones."""

    steps: int = 0
    failed_steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0

    def in_words(self) -> str:
        """For the log."""
        return (
            f"{self.steps} steps ({self.failed_steps} failed) in {self.busy_s:.1f} s,"
            f" {self.prompt_tokens} prompt and {self.output_tokens} output tokens computed"
        )


class Phases:
    """The two phase runners of a replica. `run` is called from the engine's thread only."""

    def __init__(self, engine: Engine, giver: KVGiver | None = None) -> None:
        self._census = RowCensus()
        self._prefill = prefill.PhaseRunner(engine, giver)
        self._decode = decode.PhaseRunner(engine)
        self.prefill = PhaseCounters()
        self.decode = PhaseCounters()

    def run(self, batch: Batch) -> StepDone:
        """Perform one batch. Raises `EngineFailure` when the step failed."""
        decodes = batch.phase in decode.PHASES
        counters = self.decode if decodes else self.prefill
        rows = self._census.count(batch)
        began = time.perf_counter()
        try:
            result = self._decode.run(batch) if decodes else self._prefill.run(batch)
        except BaseException:
            counters.failed_steps += 1
            raise
        duration_s = time.perf_counter() - began
        counters.steps += 1
        counters.busy_s += duration_s
        counters.prompt_tokens += rows.prompt
        counters.output_tokens += rows.output
        return StepDone(result, duration_s)

    def rows_computed(self) -> RowCount:
        """Prompt and output rows of all steps so far (read from another thread: the counts may be one step old)."""
        counters = (self.prefill, self.decode)
        return RowCount(sum(c.prompt_tokens for c in counters), sum(c.output_tokens for c in counters))

    def summary(self) -> str:
        """What was computed here, in words."""
        widest = f"at most {self._decode.widest} sequences at once"
        return f"prefill: {self.prefill.in_words()}; decode: {self.decode.in_words()}, {widest}"
