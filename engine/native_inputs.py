"""Checks of a step before compiled code sees it: no wrong shape, dtype or number may reach a raw pointer."""

from __future__ import annotations

import numpy as np
import torch

from contracts.errors import EngineFailure
from engine.executor import StepInputs

_DTYPES = {
    "positions": torch.int32,
    "query_start": torch.int32,
    "context_len": torch.int32,
    "block_table": torch.int32,
    "slots": torch.int64,
}


def check_step(inputs: StepInputs, block_size: int, num_blocks: int, max_context: int) -> None:
    """Raises `EngineFailure` unless every index that the kernels form from `inputs` lies inside its array."""
    for name, dtype in _DTYPES.items():
        tensor = getattr(inputs, name)
        if tensor.dtype != dtype or tensor.device.type != "cpu" or not tensor.is_contiguous():
            raise EngineFailure(f"{name} must be {dtype}, contiguous, on the CPU")
    num_rows, num_sequences = inputs.slots.numel(), inputs.context_len.numel()
    shapes_fit = (
        inputs.positions.shape == (num_rows,)
        and inputs.query_start.shape == (num_sequences + 1,)
        and inputs.block_table.ndim == 2
        and inputs.block_table.shape[0] == num_sequences
    )
    if not shapes_fit or not num_sequences:
        raise EngineFailure("the tensors of the step do not fit each other")
    start, context = inputs.query_start.numpy(), inputs.context_len.numpy()
    counts = np.diff(start)
    if start[0] != 0 or start[-1] != num_rows or counts.min() < 1:
        raise EngineFailure("query_start must rise from 0 to the number of rows")
    if (context < counts).any() or context.max() > min(max_context, inputs.block_table.shape[1] * block_size):
        raise EngineFailure("context_len does not fit its rows, its block table, or the rope table")
    _check_range("block_table", inputs.block_table, num_blocks)
    _check_range("slots", inputs.slots, num_blocks * block_size)
    # Attention derives positions from context_len: the two must agree, or rows would be rotated and masked differently.
    expected = np.arange(num_rows) + np.repeat(context - counts - start[:-1], counts)
    if not np.array_equal(inputs.positions.numpy(), expected):
        raise EngineFailure("positions must be the last consecutive ones of each sequence's context")


def _check_range(name: str, tensor: torch.Tensor, bound: int) -> None:
    values = tensor.numpy()
    if values.min() < 0 or values.max() >= bound:
        raise EngineFailure(f"{name} holds an index outside 0 to {bound - 1}")
