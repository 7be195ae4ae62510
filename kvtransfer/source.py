"""Where the bytes of a hand-off come from: straight out of the pool, or cut anew for a receiver with other blocks."""

from __future__ import annotations

from kvtransfer.outgoing import Outgoing
from kvtransfer.recut import Recut
from kvtransfer.spans import Pool, by_layer


class Source:
    """The sender's pool, for receivers with blocks of `block_size` tokens."""

    def __init__(self, pool: Pool, memory: memoryview, block_size: int) -> None:
        self._pool = pool
        self._memory = memory
        same = block_size == pool.layout.block_size
        self._recut = None if same else Recut(memory, pool.layout, pool.num_blocks, block_size)

    def views(self, outgoing: Outgoing, cells: range) -> list[memoryview]:
        """The bytes of these cells of the ticket's byte space, in order."""
        slot = outgoing.cells.slot
        found: list[memoryview] = []
        for layer, start, end in by_layer(cells, slot.num_blocks):
            if self._recut is None:
                skip = slot.skip_tokens // slot.block_size
                blocks = outgoing.blocks[skip + start : skip + end]
                spans = self._pool.spans(blocks, layer)
                found += [self._memory[offset : offset + length] for offset, length in spans]
            else:
                first_token = slot.skip_tokens + start * slot.block_size
                cut = self._recut.blocks(layer, outgoing.blocks, first_token, end - start)
                found.append(cut.reshape(-1).data)
        return found
