"""KV between replicas with different block sizes, and what else must agree. Pure; exact, since bytes are only moved.

One block of one layer is `[2, heads, block_size, head_dim]` (0 keys, 1 values), so blocks of one size are not
concatenations of blocks of another: the token axis lies inside. `Recut` cuts a sender's blocks into a receiver's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from contracts.kv import DTYPE_BYTES, Fingerprint, KVLayout

Bytes = NDArray[np.uint8]


def fingerprint_difference(mine: Fingerprint, theirs: Fingerprint) -> str | None:
    """Why two replicas cannot hand KV to each other: the first field that differs, with both values; None if they fit.

    Block sizes may differ where one divides the other.
    """
    for name, a, b in _fields(mine, theirs):
        if name != "layout.block_size" and a != b:
            return f"{name} differs: {a!r} here, {b!r} there"
    a, b = mine.layout.block_size, theirs.layout.block_size
    if max(a, b) % min(a, b):
        return f"layout.block_size differs: {a} here, {b} there, and neither divides the other"
    return None


def _fields(mine: msgspec.Struct, theirs: msgspec.Struct, prefix: str = "") -> list[tuple[str, Any, Any]]:
    found: list[tuple[str, Any, Any]] = []
    for name in mine.__struct_fields__:
        a, b = getattr(mine, name), getattr(theirs, name)
        if isinstance(a, msgspec.Struct):
            found += _fields(a, b, f"{prefix}{name}.")
        else:
            found.append((prefix + name, a, b))
    return found


class Recut:
    """Cuts blocks of a pool into blocks of another size.

    memory: the sender's pool, C order `[num_layers, num_blocks, block bytes]`. `block_size` is the receiver's; one of
    the two sizes must divide the other. Raises `ValueError` otherwise.
    """

    def __init__(self, memory: memoryview, layout: KVLayout, num_blocks: int, block_size: int) -> None:
        self._mine, self._theirs = layout.block_size, block_size
        if max(self._mine, self._theirs) % min(self._mine, self._theirs):
            raise ValueError(f"blocks of {self._mine} tokens cannot be cut into blocks of {self._theirs}")
        row = layout.head_dim * DTYPE_BYTES[layout.dtype]
        shape = (layout.num_layers, num_blocks, 2, layout.num_kv_heads, layout.block_size, row)
        self._pool: Bytes = np.frombuffer(memory, dtype=np.uint8).reshape(shape)

    def blocks(self, layer: int, table: Sequence[int], first_token: int, count: int) -> Bytes:
        """`count` blocks of the receiver's size from token `first_token` (a multiple of that size) on, as a copy.

        `table` is the sequence's block table at the sender. Result: `[count, 2, heads, block_size, head_dim bytes]`
        uint8, C order. Tokens behind the table's end are zeros. Raises `IndexError` for blocks that do not exist.
        """
        if self._theirs <= self._mine:
            parts = self._mine // self._theirs
            index = first_token // self._theirs + np.arange(count)
            wanted = np.asarray(table, dtype=np.intp)[index // parts]
            cut = self._pool[layer].reshape(*self._pool.shape[1:4], parts, self._theirs, -1)
            return np.ascontiguousarray(cut[wanted, :, :, index % parts])
        parts = self._theirs // self._mine
        start = first_token // self._mine
        wanted = np.asarray(table[start : start + count * parts], dtype=np.intp)
        _, _, kinds, heads, size, row = self._pool.shape
        whole = np.zeros((count, kinds, heads, parts, size, row), dtype=np.uint8)
        place = np.arange(len(wanted))
        whole[place // parts, :, :, place % parts] = self._pool[layer][wanted]
        return whole.reshape(count, kinds, heads, self._theirs, row)
