"""One end of a measured pair: a process that answers commands on standard input, one JSON object a line.

Only the standard library and numpy, so that the ends of other systems can run it in environments of their own. What a
library prints on standard output goes to standard error instead.

A pool is C order `[num_layers, num_blocks, block_bytes]`, filled and touched. A hand-off moves the blocks of one table
of the giver's pool to those of one table of the taker's.
"""

from __future__ import annotations

import json
import mmap
import os
import resource
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MESSAGE_BYTES = 4 << 20
FILL_NUMBERS = 1 << 17
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """The pool of either end, in blocks of `block_bytes` per layer (`block_size` tokens each)."""

    num_layers: int
    num_blocks: int
    block_bytes: int

    @property
    def num_bytes(self) -> int:
        """The whole pool."""
        return self.num_layers * self.num_blocks * self.block_bytes

    def bytes_of(self, num_blocks: int) -> int:
        """A hand-off of so many blocks."""
        return self.num_layers * num_blocks * self.block_bytes

    def spans(self, table: Sequence[int]) -> list[tuple[int, int]]:
        """`(offset, length)` of a table's blocks, layer by layer; neighbours are one span."""
        runs: list[tuple[int, int]] = []
        for block in table:
            if runs and runs[-1][0] + runs[-1][1] == block:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((block, 1))
        size = self.block_bytes
        return [
            ((layer * self.num_blocks + first) * size, count * size)
            for layer in range(self.num_layers)
            for first, count in runs
        ]


def messages(spans: Sequence[tuple[int, int]], limit: int = MESSAGE_BYTES) -> Iterator[list[tuple[int, int]]]:
    """The spans cut into messages of `limit` bytes, the last one shorter."""
    message: list[tuple[int, int]] = []
    room = limit
    for first, length in spans:
        offset, left = first, length
        while left:
            count = min(left, room)
            message.append((offset, count))
            offset, left, room = offset + count, left - count, room - count
            if not room:
                yield message
                message, room = [], limit
    if message:
        yield message


def filled_pool(num_bytes: int, seed: int) -> memoryview:
    """Touched memory in huge pages where the system has them (as an engine's KV pool), each 8 bytes different."""
    pages = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        pages.madvise(mmap.MADV_HUGEPAGE)
    fill(memoryview(pages), seed)
    return memoryview(pages)


def fill(memory: memoryview, seed: int) -> None:
    """Count up from `seed`, 8 bytes a number."""
    numbers = np.frombuffer(memory, dtype=np.uint64)
    for start in range(0, len(numbers), FILL_NUMBERS):
        part = numbers[start : start + FILL_NUMBERS]
        part[:] = np.arange(seed + start, seed + start + len(part), dtype=np.uint64)


def digest(memory: memoryview, spans: Sequence[tuple[int, int]]) -> int:
    """A checksum of what lies there, in order."""
    value = 0
    for offset, length in spans:
        value = zlib.crc32(memory[offset : offset + length], value)
    return value


def cpu_s() -> float:
    """CPU seconds of this process so far, all threads, user and system."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Meter:
    """CPU seconds since `start`."""

    def __init__(self) -> None:
        self._cpu_s = 0.0
        self.began_at = 0.0

    def start(self) -> None:
        """From here on. `began_at` is of the system's monotonic clock, which all processes share."""
        self._cpu_s = cpu_s()
        self.began_at = time.monotonic()

    def stop(self, ended_at: float | None = None) -> Answer:
        """What has passed: `began_at`, `ended_at` (now by default), `cpu_s`."""
        ended_at = time.monotonic() if ended_at is None else ended_at
        return {"began_at": self.began_at, "ended_at": ended_at, "cpu_s": cpu_s() - self._cpu_s}


COMMANDS = ("open", "connect", "accept", "take", "taken", "give", "check", "idle", "reset", "prefill", "probe")


def serve(end: object) -> None:
    """Call the methods of `end` by name until standard input ends or the command is `end`; then its `close`.

    An error ends the process, with its traceback on standard error.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        command = json.loads(line)
        name = command.pop("do")
        if name not in COMMANDS:
            break
        answers.write(json.dumps(getattr(end, name)(**command)) + "\n")
        answers.flush()
    close: Callable[[], None] | None = getattr(end, "close", None)
    if close is not None:
        close()


class PoolEnd:
    """What all ends have: a pool, a meter, and a checksum over blocks."""

    shape: Shape
    pool: memoryview

    def __init__(self) -> None:
        self.meter = Meter()

    def make_pool(self, shape: Sequence[int], seed: int) -> None:
        """Fill and touch it."""
        self.shape = Shape(*shape)
        self.pool = filled_pool(self.shape.num_bytes, seed)

    def check(self, table: list[int]) -> Answer:
        """A checksum of these blocks."""
        return {"digest": digest(self.pool, self.shape.spans(table))}

    def reset(self) -> Answer:
        """Begin to count for `idle`."""
        self.meter.start()
        return {}

    def idle(self) -> Answer:
        """What has been used since `reset`."""
        return self.meter.stop()

    def views(self, spans: Sequence[tuple[int, int]]) -> list[memoryview]:
        """The memory of these spans."""
        return [self.pool[offset : offset + length] for offset, length in spans]
