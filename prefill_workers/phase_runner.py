"""How a step that computes prompt tokens is performed: a prefill phase, or a chunked (mixed) step.

KV of sequences that go on elsewhere is given away layer by layer while the step still computes.
"""

from __future__ import annotations

from contracts.batch import Batch, StepResult
from contracts.engine import Engine
from contracts.phase import Phase
from prefill_workers.kv_giver import KVGiver

PHASES = (Phase.PREFILL, Phase.MIXED)


class PhaseRunner:
    """Performs prefill and mixed batches on one engine. Called from the engine's thread only.

    `giver` is None where KV cannot be given away.
    """

    def __init__(self, engine: Engine, giver: KVGiver | None = None) -> None:
        self._engine = engine
        self._giver = giver

    def run(self, batch: Batch) -> StepResult:
        """Compute one batch. Raises what the engine raises (`EngineFailure`)."""
        on_layer_done = self._giver.watch(batch) if self._giver is not None else None
        if on_layer_done is None:
            return self._engine.step(batch)
        return self._engine.step(batch, on_layer_done)
