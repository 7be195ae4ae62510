"""Which memory a slot stands for, and who is writing to it: what every receiver keeps. No I/O.

All methods belong on the transfer loop.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from kvtransfer.protocol import SLOT_ID_BYTES, Span


def address_of(view: memoryview) -> int:
    """Where a non-empty contiguous buffer lies in this process's memory."""
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])


def cut(lengths: Sequence[int], offset: int, length: int) -> list[tuple[int, int, int]]:
    """The part `[offset, offset + length)` of the concatenation of pieces with these lengths.

    Returns `(piece, start, length)` for each piece that has a share. Raises `ValueError` if it does not lie inside.
    """
    if offset < 0 or length < 0 or offset + length > sum(lengths):
        raise ValueError(f"bytes {offset} to {offset + length} of {sum(lengths)}")
    parts = []
    begin = 0
    for piece, size in enumerate(lengths):
        start, end = max(offset, begin), min(offset + length, begin + size)
        if start < end:
            parts.append((piece, start - begin, end - start))
        begin += size
    return parts


@dataclass(slots=True)
class OpenSlot:
    """One slot: its spans and where each ends, the writes under way, and whether it only waits for those to end."""

    spans: tuple[Span, ...]
    ends: list[int]
    writers: set[object] = field(default_factory=set)
    closing: bool = False
    idle: asyncio.Event = field(default_factory=asyncio.Event)

    def part(self, offset: int, length: int) -> list[Span] | None:
        """Where these bytes of the slot lie, None if not all lie inside. Costs what it returns, not the slot."""
        size = self.ends[-1] if self.ends else 0
        if offset < 0 or length < 0 or offset + length > size:
            return None
        found = []
        index = bisect_right(self.ends, offset)
        while length:
            span = self.spans[index]
            left = self.ends[index] - offset
            count = left if left < length else length
            if count:
                found.append(Span(span.offset + span.length - left, count))
            offset += count
            length -= count
            index += 1
        return found


class SlotTable:
    """The slots of one memory. `refused_puts` and `refused_bytes` count what was swallowed."""

    def __init__(self, memory: memoryview) -> None:
        if memory.readonly or not memory.c_contiguous or memory.itemsize != 1 or memory.ndim != 1:
            raise ValueError("the memory must be writable, contiguous bytes")
        self.memory = memory
        self.refused_puts = 0
        self.refused_bytes = 0
        self._slots: dict[bytes, OpenSlot] = {}

    def open(self, slot_id: bytes, spans: Sequence[Span]) -> None:
        """Raises `ValueError` for spans outside the memory, a bad id, or one that is in use."""
        if len(slot_id) != SLOT_ID_BYTES:
            raise ValueError(f"a slot id has {SLOT_ID_BYTES} bytes, not {len(slot_id)}")
        if slot_id in self._slots:
            raise ValueError("this slot is open")
        for span in spans:
            if span.offset < 0 or span.length < 0 or span.offset + span.length > len(self.memory):
                raise ValueError(f"{span} lies outside the memory of {len(self.memory)} bytes")
        self._slots[slot_id] = OpenSlot(tuple(spans), list(accumulate(span.length for span in spans)))

    def begin(self, slot_id: bytes, offset: int, length: int, writer: object) -> list[Span] | None:
        """Enter a writer, and return where its bytes go; None, counted, if they must be swallowed."""
        slot = self._slots.get(slot_id)
        spans = None if slot is None or slot.closing else slot.part(offset, length)
        if slot is None or spans is None:
            self.refused_puts += 1
            self.refused_bytes += length
            return None
        slot.writers.add(writer)
        return spans

    def is_open(self, slot_id: bytes) -> bool:
        """Whether puts may still be announced."""
        slot = self._slots.get(slot_id)
        return slot is not None and not slot.closing

    def end(self, slot_id: bytes, writer: object) -> bool:
        """The writer touches the memory no more. Returns whether its put may be announced. Idempotent."""
        slot = self._slots.get(slot_id)
        if slot is None or writer not in slot.writers:
            return False
        slot.writers.discard(writer)
        if not slot.writers:
            slot.idle.set()
        return not slot.closing

    def writers(self, slot_id: bytes) -> set[object]:
        """The writes under way."""
        slot = self._slots.get(slot_id)
        return set(slot.writers) if slot is not None else set()

    async def close(self, slot_id: bytes) -> None:
        """Refuse new writers at once; return when the last one ended. Cancelling leaves the slot refusing."""
        slot = self._slots.get(slot_id)
        if slot is None:
            return
        slot.closing = True
        while slot.writers:
            slot.idle.clear()
            await slot.idle.wait()
        if self._slots.get(slot_id) is slot:
            del self._slots[slot_id]
