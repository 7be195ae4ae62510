"""What a replica asks of an engine: one model on one device (or one group of devices), one step at a time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from contracts.batch import Batch, StepResult
from contracts.kv import KVLayout
from contracts.model import ModelSpec

OnLayerDone = Callable[[int], None]


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

    @property
    def kv_memory(self) -> memoryview | None:
        """The whole KV pool as writable bytes, page-aligned, C order `[num_layers, num_blocks, block_bytes_per_layer]`.

        None where the host cannot address it (on CUDA, for now): such an engine can neither give nor take KV.
        """
        ...

    @property
    def device(self) -> str:
        """Where it runs: `cpu`, `cuda:0`, `fake`."""
        ...

    @property
    def numerics(self) -> str:
        """What changes values beside model, dtype and layout: weights' quantization and executor.

        Goes into the `Fingerprint`: KV of engines that differ in it does not mix.
        """
        ...

    def step(self, batch: Batch, on_layer_done: OnLayerDone | None = None) -> StepResult:
        """Compute one batch. Raises `EngineFailure` when the whole step failed.

        `on_layer_done(layer)` is called on the engine's thread, in order, as soon as the KV of a layer lies in
        `kv_memory` for all rows of the batch. It must return quickly.
        """
        ...

    def close(self) -> None:
        """Free the device. Idempotent."""
        ...
