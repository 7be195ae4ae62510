"""How a step that computes prompt tokens is performed: a prefill phase, or a chunked (mixed) step.

Giving KV away layer by layer begins here too, once replicas hand sequences over.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from contracts.batch import Batch
from contracts.engine import Engine
from contracts.phase import Phase
from contracts.replica_io import StepDone
from scheduling.row_census import RowCensus

PHASES = (Phase.PREFILL, Phase.MIXED)


@dataclass(slots=True)
class PrefillCounters:
    """What prefill steps of this replica did. `output_tokens` are decode rows of mixed steps, and recomputed ones."""

    steps: int = 0
    failed_steps: int = 0
    busy_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0


class PhaseRunner:
    """Performs prefill and mixed batches on one engine. Called from the engine's thread only."""

    def __init__(self, engine: Engine, census: RowCensus) -> None:
        self._engine = engine
        self._census = census
        self.counters = PrefillCounters()

    def run(self, batch: Batch) -> StepDone:
        """Compute one batch. Raises what the engine raises (`EngineFailure`)."""
        rows = self._census.count(batch)
        began = time.perf_counter()
        try:
            result = self._engine.step(batch)
        except BaseException:
            self.counters.failed_steps += 1
            raise
        duration_s = time.perf_counter() - began
        self.counters.steps += 1
        self.counters.busy_s += duration_s
        self.counters.prompt_tokens += rows.prompt
        self.counters.output_tokens += rows.output
        return StepDone(result, duration_s)
