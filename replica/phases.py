"""Which phase runners a replica has, by role, and which of them performs a batch, by phase."""

from __future__ import annotations

import decode_workers.phase_runner as decode
import prefill_workers.phase_runner as prefill
from contracts.batch import Batch
from contracts.engine import Engine
from contracts.errors import EngineFailure
from contracts.phase import Phase, Role
from contracts.replica_io import StepDone
from scheduling.row_census import RowCensus, RowCount

PREFILL_ROLES = frozenset({Role.PREFILL, Role.ALTERNATING, Role.MIXED})
DECODE_ROLES = frozenset({Role.DECODE, Role.ALTERNATING, Role.MIXED})


class Phases:
    """The one or two phase runners of a replica. `run` is called from the engine's thread only."""

    def __init__(self, engine: Engine, role: Role) -> None:
        census = RowCensus()
        self.role = role
        self.prefill = prefill.PhaseRunner(engine, census) if role in PREFILL_ROLES else None
        self.decode = decode.PhaseRunner(engine, census) if role in DECODE_ROLES else None
        self._by_phase: dict[Phase, prefill.PhaseRunner | decode.PhaseRunner] = {}
        if self.prefill is not None:
            self._by_phase |= dict.fromkeys(prefill.PHASES, self.prefill)
        if self.decode is not None:
            self._by_phase |= dict.fromkeys(decode.PHASES, self.decode)

    def run(self, batch: Batch) -> StepDone:
        """Perform one batch. Raises `EngineFailure` when the step failed or the role has no runner for its phase."""
        runner = self._by_phase.get(batch.phase)
        if runner is None:
            raise EngineFailure(f"a replica of role {self.role} does not run {batch.phase} steps")
        return runner.run(batch)

    def rows_computed(self) -> RowCount:
        """Prompt and output rows of all steps so far (read from another thread: the counts may be one step old)."""
        counters = [runner.counters for runner in (self.prefill, self.decode) if runner is not None]
        return RowCount(sum(c.prompt_tokens for c in counters), sum(c.output_tokens for c in counters))

    def summary(self) -> str:
        """What was computed here, in words."""
        words = []
        for name, runner in (("prefill", self.prefill), ("decode", self.decode)):
            if runner is not None:
                c = runner.counters
                words.append(
                    f"{name}: {c.steps} steps ({c.failed_steps} failed) in {c.busy_s:.1f} s,"
                    f" {c.prompt_tokens} prompt and {c.output_tokens} output tokens computed"
                )
        return "; ".join(words)
