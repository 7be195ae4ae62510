"""The small messages beside NIXL's writes, over a TCP connection of their own.

    sender                        receiver
    token                  ->     metadata of its agent, or the connection is closed
    metadata of its agent  ->     READY
    PUT: slot, range, note ->     GRANT with addresses, or REFUSED (swallowed, counted)
    (write with a notice)  ->     LANDED
    END                    ->     ENDED

So the receiver knows of every write before it starts: it polls only while one is granted, and what it has to cut off
when a slot is closed under a silent sender.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Sequence

from kvtransfer.protocol import SLOT_ID_BYTES, TransferError

PUT, END = 1, 2
READY, GRANT, REFUSED, LANDED, ENDED = 11, 12, 13, 14, 15
MAX_METADATA_BYTES = 1 << 20
MAX_PIECES = 1 << 16
NOTICE = struct.Struct("!Q")
ASK = struct.Struct(f"!BxHQ{SLOT_ID_BYTES}sQQ")  # kind, bytes of note, number, slot, offset, length
ANSWER = struct.Struct("!BxxxIQ")  # kind, pieces, number
PIECE = struct.Struct("!QQ")  # address, length
_SIZE = struct.Struct("!I")


async def read_blob(reader: asyncio.StreamReader) -> bytes:
    """A length and as many bytes. Raises `TransferError`, `IncompleteReadError`."""
    (size,) = _SIZE.unpack(await reader.readexactly(_SIZE.size))
    if size > MAX_METADATA_BYTES:
        raise TransferError(f"{size} bytes of metadata")
    return await reader.readexactly(size)


def blob(data: bytes) -> bytes:
    """The inverse of `read_blob`."""
    return _SIZE.pack(len(data)) + data


def answer(kind: int, number: int, pieces: Sequence[tuple[int, int]] = ()) -> bytes:
    """One answer of the receiver."""
    return ANSWER.pack(kind, len(pieces), number) + b"".join(PIECE.pack(*piece) for piece in pieces)


async def read_answer(reader: asyncio.StreamReader) -> tuple[int, int, list[tuple[int, int]]]:
    """`(kind, number, pieces)`. Raises `TransferError`, `IncompleteReadError`."""
    kind, num_pieces, number = ANSWER.unpack(await reader.readexactly(ANSWER.size))
    if num_pieces > MAX_PIECES:
        raise TransferError(f"a grant of {num_pieces} pieces")
    return kind, number, list(PIECE.iter_unpack(await reader.readexactly(num_pieces * PIECE.size)))
