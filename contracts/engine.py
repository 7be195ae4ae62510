"""What a replica asks of an engine: one model on one device (or one group of devices), one step at a time."""

from __future__ import annotations

from typing import Protocol

from contracts.batch import Batch, StepResult
from contracts.kv import KVLayout
from contracts.model import ModelSpec


class Engine(Protocol):
    """One model, its paged KV cache, one `step`. Called from one thread only."""

    @property
    def spec(self) -> ModelSpec:
        """The model served."""
        ...

    @property
    def kv_layout(self) -> KVLayout:
        """How KV lies in memory."""
        ...

    @property
    def num_blocks(self) -> int:
        """KV blocks that exist; ids are `0 .. num_blocks - 1`."""
        ...

    def step(self, batch: Batch) -> StepResult:
        """Compute one batch. Raises `EngineFailure` when the whole step failed."""
        ...

    def close(self) -> None:
        """Free the device. Idempotent."""
        ...
