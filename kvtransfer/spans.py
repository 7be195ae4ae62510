"""Layout maths of a hand-off: where the KV of a block lies in the pool, and where in a ticket's byte space. Pure.

A pool is C order `[num_layers, num_blocks, block_bytes]`. A ticket's byte space (the slot of `kvtransfer.protocol`) is
C order `[num_layers, n, block_bytes]` over the receiver's `n` blocks of the ticket: what the receiver holds of token
`skip_tokens` onwards. A *cell* is one block of one layer there, counted layer by layer: cell `layer * n + i`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from contracts.kv import KVLayout
from kvtransfer.protocol import Span


@dataclass(frozen=True, slots=True)
class Pool:
    """The KV memory of one replica."""

    layout: KVLayout
    num_blocks: int

    @property
    def num_bytes(self) -> int:
        """Size of the whole pool."""
        return self.layout.num_layers * self.num_blocks * self.layout.block_bytes_per_layer

    def spans(self, blocks: Sequence[int], layer: int) -> list[Span]:
        """Where these blocks of one layer lie, in the order given; neighbours are one span. Raises `ValueError`."""
        size = self.layout.block_bytes_per_layer
        base = layer * self.num_blocks
        return [Span((base + first) * size, count * size) for first, count in runs(self._checked(blocks))]

    def slot_spans(self, blocks: Sequence[int]) -> list[Span]:
        """The byte space of a ticket for these blocks. Raises `ValueError` for ids that do not exist or repeat."""
        if len(set(blocks)) != len(blocks):
            raise ValueError("a block is named twice")
        return [span for layer in range(self.layout.num_layers) for span in self.spans(blocks, layer)]

    def _checked(self, blocks: Sequence[int]) -> Sequence[int]:
        if blocks and not 0 <= min(blocks) <= max(blocks) < self.num_blocks:
            raise ValueError(f"block ids must be 0 to {self.num_blocks - 1}, not {min(blocks)} to {max(blocks)}")
        return blocks


def runs(blocks: Sequence[int]) -> Iterator[tuple[int, int]]:
    """`(first, count)` of each stretch of consecutive ids, in the order given."""
    if not blocks:
        return
    first = following = blocks[0]
    for block in blocks:
        if block != following:
            yield first, following - first
            first = following = block
        following += 1
    yield first, following - first


@dataclass(frozen=True, slots=True)
class Slot:
    """The byte space of one ticket, as both sides see it. `block_size` and `block_bytes` are the receiver's."""

    num_layers: int
    num_blocks: int
    block_bytes: int
    block_size: int
    num_tokens: int
    skip_tokens: int

    @property
    def num_cells(self) -> int:
        """Blocks times layers."""
        return self.num_layers * self.num_blocks

    @property
    def num_bytes(self) -> int:
        """Everything that has to cross."""
        return self.num_cells * self.block_bytes

    def complete_blocks(self, ready_tokens: int) -> int:
        """How many of the ticket's blocks, from the front, are complete when the first `ready_tokens` tokens of the
        sequence are computed. The last block may stay partly filled, so it is complete only at the very end."""
        if ready_tokens >= self.num_tokens:
            return self.num_blocks
        return max(0, min(self.num_blocks, (ready_tokens - self.skip_tokens) // self.block_size))

    def cells(self, offset: int, length: int) -> range | None:
        """The cells that these bytes are, or None unless they are whole cells inside the space."""
        if offset < 0 or length <= 0 or offset % self.block_bytes or length % self.block_bytes:
            return None
        first, count = offset // self.block_bytes, length // self.block_bytes
        return range(first, first + count) if first + count <= self.num_cells else None


def slot_of(layout: KVLayout, *, num_blocks: int, num_tokens: int, skip_tokens: int) -> Slot:
    """The byte space of a ticket at a receiver with this layout. Raises `ValueError` where the numbers do not fit."""
    if num_tokens < 1 or not 0 <= skip_tokens < num_tokens or skip_tokens % layout.block_size:
        raise ValueError(f"cannot skip {skip_tokens} of {num_tokens} tokens in blocks of {layout.block_size}")
    needed = layout.blocks_for(num_tokens - skip_tokens)
    if num_blocks != needed:
        raise ValueError(f"{num_tokens - skip_tokens} tokens need {needed} blocks, the ticket names {num_blocks}")
    return Slot(
        num_layers=layout.num_layers,
        num_blocks=num_blocks,
        block_bytes=layout.block_bytes_per_layer,
        block_size=layout.block_size,
        num_tokens=num_tokens,
        skip_tokens=skip_tokens,
    )


class ReadyCells:
    """Which cells of a slot are computed and which were taken for sending; hands them out as contiguous messages.

    Per layer the ready blocks are a prefix, and so are the taken ones. A message is a stretch of cells: part of one
    layer, or the rest of one layer with the front of the next ones, where all of that is ready.
    """

    def __init__(self, slot: Slot) -> None:
        self.slot = slot
        self._ready = [0] * slot.num_layers
        self._taken = [0] * slot.num_layers
        self.num_ready = 0
        self.num_taken = 0

    def advance(self, layer: int, ready_tokens: int) -> None:
        """The KV of the first `ready_tokens` tokens is in this layer. Never goes back. Raises `IndexError`."""
        blocks = self.slot.complete_blocks(ready_tokens)
        if blocks > self._ready[layer]:
            self.num_ready += blocks - self._ready[layer]
            self._ready[layer] = blocks

    def advance_all(self, ready_tokens: int) -> None:
        """`advance` for every layer."""
        for layer in range(self.slot.num_layers):
            self.advance(layer, ready_tokens)

    @property
    def all_ready(self) -> bool:
        """Everything is computed."""
        return self.num_ready == self.slot.num_cells

    @property
    def all_taken(self) -> bool:
        """Everything was handed out."""
        return self.num_taken == self.slot.num_cells

    def next_message(self, max_cells: int, min_cells: int) -> range | None:
        """The next cells to send, or None.

        At most `max_cells` (at least 1). A stretch shorter than `min_cells` waits as long as more can still be appended
        to it, that is, when it ends at the end of its layer and nothing of the next layer has gone yet.
        """
        n = self.slot.num_blocks
        for layer in range(self.slot.num_layers):
            first, ready = self._taken[layer], self._ready[layer]
            if first == ready:
                continue
            cells = self._stretch(layer, max(1, max_cells))
            last_layer = (cells[-1]) // n
            may_grow = (
                cells[-1] % n == n - 1 and last_layer + 1 < self.slot.num_layers and not self._taken[last_layer + 1]
            )
            if len(cells) < min(min_cells, max_cells) and may_grow and not self.all_ready:
                return None
            self._take(cells)
            return cells
        return None

    def _stretch(self, layer: int, max_cells: int) -> range:
        n = self.slot.num_blocks
        start = layer * n + self._taken[layer]
        stop = layer * n + self._ready[layer]
        while stop % n == 0 and stop - start < max_cells and stop // n < self.slot.num_layers:
            layer = stop // n
            if self._taken[layer] or not self._ready[layer]:
                break
            stop += self._ready[layer]
        return range(start, min(stop, start + max_cells))

    def _take(self, cells: range) -> None:
        n = self.slot.num_blocks
        for layer in range(cells[0] // n, cells[-1] // n + 1):
            self._taken[layer] = min(cells.stop, (layer + 1) * n) - layer * n
        self.num_taken += len(cells)


def by_layer(cells: range, num_blocks: int) -> Iterator[tuple[int, int, int]]:
    """`(layer, first block, end block)` of a stretch of cells."""
    for layer in range(cells.start // num_blocks, (cells.stop - 1) // num_blocks + 1):
        base = layer * num_blocks
        yield layer, max(cells.start - base, 0), min(cells.stop - base, num_blocks)
