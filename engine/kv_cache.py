"""The paged KV cache: one tensor per layer, written by slot, read by block table."""

from __future__ import annotations

import math

import numpy as np
import torch

from contracts.kv import KVLayout

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Names in `KVLayout.dtype` and what torch calls them."""


class KVCache:
    """KV of `num_blocks` blocks; `layers[i]` is [num_blocks, 2, num_kv_heads, block_size, head_dim] (0 keys, 1 values).

    Memory starts as zeros: on a CPU the pages are touched only when a block is first used.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
        dtype = TORCH_DTYPES[layout.dtype]
        self.layers = tuple(_zeros(shape, dtype, device) for _ in range(layout.num_layers))

    def write(
        self, layer: int, blocks: torch.Tensor, offsets: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store `keys` and `values` [N, num_kv_heads, head_dim] at `offsets[i]` of block `blocks[i]` (int64 [N])."""
        cache = self.layers[layer]
        cache[blocks, 0, :, offsets] = keys
        cache[blocks, 1, :, offsets] = values


def _zeros(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """`torch.zeros`, but on a CPU of memory that the system zeroes at first touch (torch would write all of it now)."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    return torch.from_numpy(np.zeros(math.prod(shape) * dtype.itemsize, dtype=np.uint8)).view(dtype).view(shape)


def gather_blocks(cache: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the blocks in `table` (int64 [S, B]), each [S, num_kv_heads, B * block_size, head_dim].

    `cache` is one layer. The result is a copy.
    """
    sequences, blocks = table.shape
    _, _, heads, block_size, head_dim = cache.shape
    found = cache[table]  # [S, B, 2, heads, block_size, head_dim]
    keys_values = found.permute(2, 0, 3, 1, 4, 5).reshape(2, sequences, heads, blocks * block_size, head_dim)
    return keys_values[0], keys_values[1]
