"""How a step that only continues running sequences is performed: a decode phase.

Sequences whose KV came from elsewhere (`kv_taker`) are decoded like any other. A prompt token that is computed in such
a step is a hand-off that did not pay: whoever counts rows by phase sees it.
"""

from __future__ import annotations

from contracts.batch import Batch, StepResult
from contracts.engine import Engine
from contracts.phase import Phase

PHASES = (Phase.DECODE,)


class PhaseRunner:
    """Performs decode batches on one engine. Called from the engine's thread only."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.widest = 0
        """The largest number of sequences in one step."""

    def run(self, batch: Batch) -> StepResult:
        """Compute one batch. Raises what the engine raises (`EngineFailure`)."""
        result = self._engine.step(batch)
        self.widest = max(self.widest, len(batch.chunks))
        return result
