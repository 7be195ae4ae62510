"""How a step that only continues running sequences is performed: a decode phase.

Taking KV in from a prefill replica begins here too, once replicas hand sequences over. Until then, and after it, a
prompt token that is computed here is a hand-off that did not pay: it is counted apart.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from contracts.batch import Batch
from contracts.engine import Engine
from contracts.phase import Phase
from contracts.replica_io import StepDone
from scheduling.row_census import RowCensus

PHASES = (Phase.DECODE,)


@dataclass(slots=True)
class DecodeCounters:
    """What decode steps of this replica did. `widest` is the largest number of sequences in one step."""

    steps: int = 0
    failed_steps: int = 0
    busy_s: float = 0.0
    output_tokens: int = 0
    prompt_tokens: int = 0
    widest: int = 0


class PhaseRunner:
    """Performs decode batches on one engine. Called from the engine's thread only."""

    def __init__(self, engine: Engine, census: RowCensus) -> None:
        self._engine = engine
        self._census = census
        self.counters = DecodeCounters()

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
        self.counters.output_tokens += rows.output
        self.counters.prompt_tokens += rows.prompt
        self.counters.widest = max(self.counters.widest, len(batch.chunks))
        return StepDone(result, duration_s)
