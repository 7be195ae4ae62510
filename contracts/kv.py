"""The KV cache layout as data, and the fingerprint by which two replicas know that they fit together."""

from __future__ import annotations

import msgspec

DTYPE_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class KVLayout(msgspec.Struct, frozen=True, kw_only=True):
    """How one sequence's keys and values lie in memory.

    Per layer one tensor `[num_blocks, 2, num_kv_heads, block_size, head_dim]` (0 keys, 1 values), so that one block
    of one layer is a single contiguous span.
    """

    num_layers: int
    num_kv_heads: int
    head_dim: int
    block_size: int
    dtype: str

    @property
    def bytes_per_token(self) -> int:
        """Keys and values of one token over all layers."""
        return self.num_layers * 2 * self.num_kv_heads * self.head_dim * DTYPE_BYTES[self.dtype]

    @property
    def block_bytes_per_layer(self) -> int:
        """The contiguous span of one block in one layer."""
        return 2 * self.num_kv_heads * self.block_size * self.head_dim * DTYPE_BYTES[self.dtype]

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)


class Fingerprint(msgspec.Struct, frozen=True, kw_only=True):
    """Two replicas may hand KV to each other only if all of this agrees (block sizes may differ where one can be cut
    into the other). `numerics` names what else changes a value: weights' quantization and executor."""

    model_digest: str
    layout: KVLayout
    parallel: str = "tp1pp1"
    numerics: str = ""
    protocol: int = 2
