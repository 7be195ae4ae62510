"""The KV cache of the fake engine: real bytes in the layout of a real engine, cheap to write and to check. No torch.

One 64-bit word stands for the keys and values of a token in its context (see `fake_history`). The cache stores it in
every 8-byte cell of the token, in every layer and head, multiplied by an odd constant of the cell. Multiplication by an
odd number is a bijection of 64-bit words, so that each cell gives the word back, and bytes that were dropped, mixed up
between layers, heads or tokens, or taken from elsewhere give another word.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from contracts.batch import Chunk
from contracts.errors import ConfigError
from contracts.kv import KVLayout
from engine.fake_history import Words, mix_words
from engine.kv_memory import as_bytes, prefault, zeroed_memory

CELL_BYTES = 8

Indices = npt.NDArray[np.int64]


class FakeKV:
    """`num_blocks` blocks in the layout of `contracts.kv.KVLayout`; `memory` is all of it as bytes.

    Raises `ConfigError` for a layout whose heads are not made of whole cells.
    """

    def __init__(self, layout: KVLayout, num_blocks: int, *, touch: bool = False) -> None:
        self._layout = layout
        heads = layout.num_kv_heads
        cells_a_head = layout.block_bytes_per_layer // (2 * heads * layout.block_size * CELL_BYTES)
        if layout.num_layers * 2 * heads * cells_a_head * CELL_BYTES != layout.bytes_per_token:
            raise ConfigError(f"a head of {layout.head_dim} {layout.dtype} numbers is not made of 8-byte cells")
        pages = zeroed_memory(layout.num_layers * num_blocks * layout.block_bytes_per_layer)
        if touch:
            prefault(pages)
        self.memory = as_bytes(pages)
        shape = (layout.num_layers, num_blocks, 2, heads, layout.block_size, cells_a_head)
        self._cells: Words = pages.view(np.uint64).reshape(shape)
        self._num_cells = layout.num_layers * 2 * heads * cells_a_head
        factors = mix_words(np.arange(1, self._num_cells + 1, dtype=np.uint64)) | np.uint64(1)
        self._factors = factors.reshape(layout.num_layers, 2, heads, cells_a_head)
        self._inverses = _inverses(factors)
        self._places = np.unravel_index(np.arange(self._num_cells), self._factors.shape)

    def word_before(self, chunk: Chunk) -> int:
        """The word of the token before the chunk, as its first cell holds it; 0 at the start of a sequence."""
        if not chunk.start:
            return 0
        block, offset = divmod(chunk.start - 1, self._layout.block_size)
        word = int(self._cells[0, chunk.block_table[block], 0, 0, offset, 0]) * int(self._inverses[0])
        return word & 0xFFFF_FFFF_FFFF_FFFF

    def slots(self, chunk: Chunk) -> tuple[Indices, Indices]:
        """Block and offset of each token of the chunk."""
        size = self._layout.block_size
        first, end = chunk.start // size, chunk.start + len(chunk.token_ids)
        if end == chunk.start + 1:
            return np.array([chunk.block_table[first]]), np.array([chunk.start % size])
        positions = np.arange(chunk.start, end)
        return np.array(chunk.block_table[first : self._layout.blocks_for(end)])[positions // size - first], (
            positions % size
        )

    def write(self, layer: int, blocks: Indices, offsets: Indices, words: Words) -> None:
        """All cells of one layer of the tokens at `blocks` and `offsets` [N]; `words` uint64 [N]."""
        self._cells[layer][blocks, :, :, offsets, :] = words[:, None, None, None] * self._factors[layer]

    def read(self, block_table: tuple[int, ...], end: int, budget_bytes: int) -> Words:
        """The words of positions 0 to end - 1, uint64 [end], from at most `budget_bytes` of their cells (at least one).

        Where the cells of a position disagree the result is a mixture of them, which is no position's right word. What
        the budget does not cover is read at other positions' turn: the choice goes on with `end`.
        """
        table = np.array(block_table[: self._layout.blocks_for(end)])
        count = max(1, budget_bytes // (CELL_BYTES * end))
        if count >= self._num_cells:
            chosen = np.arange(self._num_cells)
            found = self._cells[:, table].transpose(0, 2, 3, 5, 1, 4).reshape(self._num_cells, -1)[:, :end]
        else:
            chosen = (np.arange(count) + end * count) % self._num_cells
            layer, half, head, cell = (place[chosen, None] for place in self._places)
            found = self._cells[layer, table, half, head, :, cell].reshape(count, -1)[:, :end]
        words: Words = found * self._inverses[chosen, None]
        first: Words = words[0]
        agree = (words == first).all(axis=0)
        if agree.all():
            return first
        mixed: Words = (words * self._inverses[chosen, None]).sum(axis=0, dtype=np.uint64)
        return np.where(agree, first, mixed)


def _inverses(odd: Words) -> Words:
    """The inverses of odd numbers modulo 2**64, by Newton's iteration: each turn doubles the right low bits, from 3."""
    inverse = odd.copy()
    for _ in range(5):
        inverse = inverse * (np.uint64(2) - odd * inverse)
    return inverse
