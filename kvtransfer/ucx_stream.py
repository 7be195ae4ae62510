"""What goes over one UCX endpoint: messages of fixed size for headers, and the payload of a put in segments.

    sender                              receiver
    greeting (magic, token)     ->      `ACCEPTED`, or the endpoint is closed
    header, then its segments   ->      segments of several puts may be under way; tags keep them apart
    header with `END`           ->      `ENDED` once everything before it has landed

UCX does not tell how long a received message was, so every length is known before its receive is posted. A segment that
is one piece of memory goes straight from and to it; one of many small pieces is gathered first, because a message
costs 0.1 ms or more on either side and 64 KiB pieces would cost more than their copy.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, TOKEN_BYTES, TransferError
from kvtransfer.slot_spans import cut

Bytes = npt.NDArray[np.uint8]

MAGIC = b"psu1"
GREETING_BYTES = len(MAGIC) + TOKEN_BYTES
ACCEPTED, ENDED = b"\x01", b"\x02"
SEGMENT_BYTES = 4 << 20
PUT, END = 1, 2
_HEADER = struct.Struct(f"<BxH{SLOT_ID_BYTES}sQQ{MAX_NOTE_BYTES}s")
HEADER_BYTES = _HEADER.size


def header(kind: int, slot_id: bytes, offset: int, length: int, note: bytes) -> Bytes:
    """One header message. Raises `ValueError` for an id or a note of the wrong size."""
    if len(slot_id) != SLOT_ID_BYTES or len(note) > MAX_NOTE_BYTES or offset < 0:
        raise ValueError(f"a put of slot {slot_id!r} at {offset} with a note of {len(note)} bytes")
    return np.frombuffer(_HEADER.pack(kind, len(note), slot_id, offset, length, note), np.uint8)


def read_header(message: Bytes) -> tuple[int, bytes, int, int, bytes]:
    """`(kind, slot_id, offset, length, note)`. Raises `TransferError`."""
    kind, note_size, slot_id, offset, length, note = _HEADER.unpack(message.tobytes())
    if kind not in (PUT, END) or note_size > MAX_NOTE_BYTES:
        raise TransferError("a UCX connection broke the framing")
    return kind, slot_id, offset, length, note[:note_size]


def tag(put: int, segment: int) -> int:
    """What tells the segments of one endpoint apart; headers have the endpoint's own tag."""
    return put << 20 | segment


def segments(length: int) -> list[tuple[int, int]]:
    """`(start, size)` of the segments of a put, the same on both sides."""
    return [(start, min(SEGMENT_BYTES, length - start)) for start in range(0, length, SEGMENT_BYTES)]


class Staging:
    """Buffers for segments that are many pieces of memory. Kept, since fresh memory costs more than the copy."""

    def __init__(self, num_kept: int = 8) -> None:
        self._free: list[Bytes] = []
        self._num_kept = num_kept

    def take(self, size: int) -> Bytes:
        """`size` bytes, at most `SEGMENT_BYTES`."""
        return (self._free.pop() if self._free else np.empty(SEGMENT_BYTES, np.uint8))[:size]

    def give(self, buffer: Bytes) -> None:
        """Done with it."""
        base: Any = buffer.base if buffer.base is not None else buffer
        if len(self._free) < self._num_kept:
            self._free.append(base)


def part(views: Sequence[memoryview], start: int, size: int) -> list[memoryview]:
    """The bytes `[start, start + size)` of the concatenation of `views`."""
    parts = cut([len(view) for view in views], start, size)
    return [views[piece][begin : begin + length] for piece, begin, length in parts]


def gather(pieces: Sequence[memoryview], buffer: Bytes) -> None:
    """Copy the pieces one behind the other into `buffer`."""
    target, at = buffer.data, 0
    for piece in pieces:
        target[at : at + len(piece)] = piece
        at += len(piece)


def scatter(buffer: Bytes, pieces: Sequence[memoryview]) -> None:
    """The inverse of `gather`."""
    source, at = buffer.data, 0
    for piece in pieces:
        piece[:] = source[at : at + len(piece)]
        at += len(piece)
