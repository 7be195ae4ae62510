"""Puts on a byte stream: what a bulk connection says, and the reader that takes it apart. No I/O.

    preamble   magic, token                       answered with ACCEPTED, or by closing the connection
    put        header (HEADER_BYTES), then `length` bytes
    end        header of kind END                 answered with ENDED: everything before it has landed

The header has a fixed size, so that a receiver can take the rest of one put and the header of the next in one call.
The reader names the memory where the next bytes belong, so that they are written once and by the kernel.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

from kvtransfer.protocol import MAX_NOTE_BYTES, SLOT_ID_BYTES, TOKEN_BYTES, Admit, OnLanded, TransferError
from kvtransfer.slot_spans import SlotTable

MAGIC = b"psb1"
PREAMBLE_BYTES = len(MAGIC) + TOKEN_BYTES
ACCEPTED = b"\x01"
ENDED = b"\x02"
PUT, END = 1, 2
_HEADER = struct.Struct(f"<4sBxH{SLOT_ID_BYTES}sQQ{MAX_NOTE_BYTES}s")
HEADER_BYTES = _HEADER.size
MAX_PIECES = 512
SCRATCH_BYTES = 1 << 20


def preamble(token: bytes) -> bytes:
    """The first bytes of a bulk connection. Raises `ValueError`."""
    if len(token) != TOKEN_BYTES:
        raise ValueError(f"a token has {TOKEN_BYTES} bytes, not {len(token)}")
    return MAGIC + token


def put_header(slot_id: bytes, offset: int, length: int, note: bytes) -> bytes:
    """The header of one put. Raises `ValueError` for an id or a note of the wrong size."""
    if len(slot_id) != SLOT_ID_BYTES:
        raise ValueError(f"a slot id has {SLOT_ID_BYTES} bytes, not {len(slot_id)}")
    if len(note) > MAX_NOTE_BYTES:
        raise ValueError(f"a note of {len(note)} bytes, at most {MAX_NOTE_BYTES} are allowed")
    if offset < 0:
        raise ValueError("an offset must not be negative")
    return _HEADER.pack(MAGIC, PUT, len(note), slot_id, offset, length, note)


END_HEADER = _HEADER.pack(MAGIC, END, 0, bytes(SLOT_ID_BYTES), 0, 0, b"")


@dataclass(slots=True)
class Counters:
    """What a receiver saw since it was made. `refused_puts` of its slot table counts what was swallowed."""

    landed_puts: int = 0
    landed_bytes: int = 0
    cut_puts: int = 0
    refused_connections: int = 0
    stalled_connections: int = 0
    broken_connections: int = 0


class PutReader:
    """Takes one connection's stream apart. Ask `buffers` where to read to, read once, report with `filled`."""

    def __init__(self, table: SlotTable, on_landed: OnLanded, admit: Admit, counters: Counters) -> None:
        self._table = table
        self._on_landed = on_landed
        self._admit = admit
        self._counters = counters
        self._head = memoryview(bytearray(max(HEADER_BYTES, PREAMBLE_BYTES)))
        self._head_left = PREAMBLE_BYTES
        self._head_size = PREAMBLE_BYTES
        self._scratch: memoryview | None = None
        self._slot_id, self._offset, self._length, self._note = b"", 0, 0, b""
        self._body_left = 0
        self._pieces: list[memoryview] | None = None  # None: swallow
        self._piece = 0
        self.admitted = False
        self.ended = False

    @property
    def between_puts(self) -> bool:
        """Nothing has begun that should go on: the peer may be silent now."""
        return self.admitted and not self._body_left and self._head_left == self._head_size

    @property
    def missing(self) -> int:
        """Bytes of the put or the header under way that are still to come; at least 1."""
        return self._body_left or self._head_left

    def buffers(self) -> list[memoryview]:
        """Where the next bytes belong, in order; never empty. Never more than this put and the next header."""
        if not self._body_left:
            return [self._head[self._head_size - self._head_left : self._head_size]]
        if self._pieces is None:
            if self._scratch is None:
                self._scratch = memoryview(bytearray(SCRATCH_BYTES))
            return [self._scratch[: self._body_left]]
        pieces = self._pieces[self._piece : self._piece + MAX_PIECES]
        if self._piece + MAX_PIECES >= len(self._pieces):
            pieces.append(self._head[:HEADER_BYTES])
        return pieces

    def filled(self, count: int) -> bytes:
        """`count` bytes were read into `buffers`. Returns the answer to send. Raises `TransferError`: then close."""
        if self._body_left:
            in_body = min(count, self._body_left)
            self._take_body(in_body)
            count -= in_body
            if not count:
                return b""
        self._head_left -= count
        if self._head_left:
            return b""
        return self._read_head() if self.admitted else self._read_preamble()

    def cut(self) -> None:
        """Write no more for the put under way: swallow the rest."""
        if self._pieces is not None:
            self._pieces = None
            self._table.end(self._slot_id, self)
            self._counters.cut_puts += 1

    def _take_body(self, count: int) -> None:
        self._body_left -= count
        pieces = self._pieces
        if pieces is not None:
            while count:
                size = len(pieces[self._piece])
                if count < size:
                    pieces[self._piece] = pieces[self._piece][count:]
                    break
                count -= size
                self._piece += 1
        if not self._body_left:
            self._land()

    def _land(self) -> None:
        self._head_left = self._head_size = HEADER_BYTES
        if self._pieces is None:
            return
        self._pieces = None
        if self._table.end(self._slot_id, self):
            self._counters.landed_puts += 1
            self._counters.landed_bytes += self._length
            self._on_landed(self._slot_id, self._offset, self._length, self._note)

    def _read_preamble(self) -> bytes:
        head = bytes(self._head[:PREAMBLE_BYTES])
        if not head.startswith(MAGIC) or not self._admit(head[len(MAGIC) :]):
            self._counters.refused_connections += 1
            raise TransferError("a bulk connection without a known token")
        self.admitted = True
        self._head_left = self._head_size = HEADER_BYTES
        return ACCEPTED

    def _read_head(self) -> bytes:
        magic, kind, note_bytes, slot_id, offset, length, note = _HEADER.unpack(self._head[:HEADER_BYTES])
        if magic != MAGIC or kind not in (PUT, END) or note_bytes > MAX_NOTE_BYTES:
            raise TransferError("a bulk connection broke the framing")
        self._head_left = HEADER_BYTES
        if kind == END:
            self.ended = True
            return ENDED
        self._slot_id, self._offset, self._length, self._note = slot_id, offset, length, note[:note_bytes]
        spans = self._table.begin(slot_id, offset, length, self)
        self._body_left = length
        self._piece = 0
        memory = self._table.memory
        self._pieces = None if spans is None else [memory[start : start + size] for start, size in spans]
        if not length:
            self._land()
        return b""


def advance(views: Sequence[memoryview], first: int, count: int) -> tuple[int, memoryview | None]:
    """`count` bytes of `views[first:]` are gone: the index of the view that is next, and its rest if it was begun."""
    while count:
        size = len(views[first])
        if count < size:
            return first, views[first][count:]
        count -= size
        first += 1
    return first, None


def scatter(source: memoryview, buffers: Sequence[memoryview]) -> int:
    """Copy from the front of `source` into the buffers, as far as either lasts. Returns the bytes copied."""
    start = 0
    for buffer in buffers:
        part = source[start : start + len(buffer)]
        buffer[: len(part)] = part
        start += len(part)
        if start == len(source):
            break
    return start
