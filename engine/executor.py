"""The seam between one flattened batch and the code that computes it: `StepInputs` and the `LayerExecutor` protocol.

Two executors stand behind it: `TorchExecutor` (any device) and `NativeCpuExecutor` (compiled CPU kernels). Both run a
range of layers, so that layer groups, pipeline stages and layer-wise KV streaming need no third one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch

from contracts.engine import OnLayerDone


@dataclass(frozen=True, slots=True)
class StepInputs:
    """One flattened batch of `N` rows from `S` sequences, on the engine's device.

    token_ids     int64 [N]
    positions     int32 [N]   position of each row in its sequence
    row_sequence  int32 [N]   which of the S sequences a row belongs to; rows of a sequence are consecutive
    query_start   int32 [S+1] first row of each sequence, and N
    context_len   int32 [S]   tokens of the sequence in the cache after this step (last position + 1)
    block_table   int32 [S, max_blocks], padded with 0
    slots         int64 [N]   where a row's KV is written: block * block_size + offset
    `max_query` and `max_context` are the largest rows-per-sequence and context_len (host ints).
    """

    token_ids: torch.Tensor
    positions: torch.Tensor
    row_sequence: torch.Tensor
    query_start: torch.Tensor
    context_len: torch.Tensor
    block_table: torch.Tensor
    slots: torch.Tensor
    max_query: int
    max_context: int


class LayerExecutor(Protocol):
    """Computes on one device. `hidden` is [N, hidden_size] in the model's dtype."""

    def embed(self, inputs: StepInputs) -> torch.Tensor:
        """Token embeddings, [N, hidden_size]."""
        ...

    def run_layers(
        self,
        hidden: torch.Tensor,
        inputs: StepInputs,
        first: int,
        last: int,
        on_layer_done: OnLayerDone | None = None,
    ) -> torch.Tensor:
        """Layers `first` to `last - 1`: writes their KV into the cache, returns the new hidden state (may reuse it).

        `on_layer_done` is called on the caller's thread, in order, before the attention of the layer begins: all that
        the layer still has to compute hides what is done with its KV.
        """
        ...

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Final norm and lm_head for `rows` [R, hidden_size]: float32 [R, vocab_size]."""
        ...
