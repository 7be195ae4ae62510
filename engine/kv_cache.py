"""The paged KV cache: one allocation, a view per layer, written by slot, read by block table."""

from __future__ import annotations

import math

import torch

from contracts.kv import KVLayout
from engine.kv_memory import as_bytes, prefault, zeroed_memory

TORCH_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
"""Names in `KVLayout.dtype` and what torch calls them."""


class KVCache:
    """KV of `num_blocks` blocks; `layers[i]` is [num_blocks, 2, num_kv_heads, block_size, head_dim] (0 keys, 1 values).

    All layers are views of one allocation. It starts as zeros: on a CPU the pages are touched only when a block is
    first used, or all at once with `touch`. `memory` is that allocation as bytes, C order [num_layers, num_blocks,
    block_bytes_per_layer], or None where it is not the host's.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, device: torch.device, *, touch: bool = False) -> None:
        self.layout = layout
        self.num_blocks = num_blocks
        shape = (layout.num_layers, num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
        dtype = TORCH_DTYPES[layout.dtype]
        self.memory: memoryview | None = None
        if device.type == "cpu":
            pages = zeroed_memory(math.prod(shape) * dtype.itemsize)
            if touch:
                prefault(pages)
            self.memory = as_bytes(pages)
            pool = torch.from_numpy(pages).view(dtype).view(shape)
        else:
            pool = torch.zeros(shape, dtype=dtype, device=device)
        self.layers = tuple(pool.unbind(0))

    def write(
        self, layer: int, blocks: torch.Tensor, offsets: torch.Tensor, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Store `keys` and `values` [N, num_kv_heads, head_dim] at `offsets[i]` of block `blocks[i]` (int64 [N])."""
        cache = self.layers[layer]
        cache[blocks, 0, :, offsets] = keys
        cache[blocks, 1, :, offsets] = values


def gather_blocks(cache: torch.Tensor, table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of the blocks in `table` (int64 [S, B]), each [S, num_kv_heads, B * block_size, head_dim].

    `cache` is one layer. The result is a copy.
    """
    sequences, blocks = table.shape
    _, _, heads, block_size, head_dim = cache.shape
    found = cache[table]  # [S, B, 2, heads, block_size, head_dim]
    keys_values = found.permute(2, 0, 3, 1, 4, 5).reshape(2, sequences, heads, blocks * block_size, head_dim)
    return keys_values[0], keys_values[1]
