"""Which blocks each hand-off moves. Pure: strides over the whole pool, so that no buffer is still in a cache."""

from __future__ import annotations

import random


class Stride:
    """Tables of blocks, one after the other through the pool, from its front again when the rest is too short.

    `scattered`: the ids are a fixed shuffle, as a pool that has served for a while gives them out.
    """

    def __init__(self, num_blocks: int, *, scattered: bool = False, seed: int = 7) -> None:
        self._blocks = list(range(num_blocks))
        if scattered:
            random.Random(seed).shuffle(self._blocks)
        self._next = 0

    def take(self, count: int) -> list[int]:
        """The next table. Raises `ValueError` if the pool is smaller."""
        if count > len(self._blocks):
            raise ValueError(f"{count} of {len(self._blocks)} blocks")
        if self._next + count > len(self._blocks):
            self._next = 0
        self._next += count
        return self._blocks[self._next - count : self._next]
