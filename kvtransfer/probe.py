"""Measuring a link with bytes that nobody needs, and proving a connection before anything depends on it.

The receiver has scratch memory: a small test region per session, whose content is checked, and one area into which the
pieces of all probes go, one over the other. The estimate is the receiver's: the tail of the landings. A probe is small
pieces, a few at a time, and gives way as soon as a real transfer begins.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median_low

import xxhash

from kvtransfer.channel import Channel
from kvtransfer.protocol import BulkSender, Span, TransferError
from kvtransfer.rate import tail
from kvtransfer.wire import PROBE_NOTE, ProbeBegin, ProbeResult

TEST_BYTES = 16 << 10
TEST_REGIONS = 64
PIECE_BYTES = 256 << 10
AREA_PIECES = 4
SCRATCH_BYTES = TEST_REGIONS * TEST_BYTES + AREA_PIECES * PIECE_BYTES
PIECES_UNDER_WAY = 4
MIN_PIECE_BYTES = 16 << 10
MIN_PIECES = 4
FIRST_PIECE_S = 0.01
SHORT_PIECE_S = 0.05
MIN_PROBE_S = 0.1
"""Of a whole probe, so that its second half takes 50 ms."""
MAX_PROBE_BYTES = 64 << 20
MAX_EARLY_PIECES = 2 * MAX_PROBE_BYTES // MIN_PIECE_BYTES
"""A whole probe may land before its announcement is read: the two come by connections of their own."""
ROUNDS = 3


def scratch_spans(session_number: int) -> tuple[Span, Span]:
    """The byte space of a session's scratch slot: its test region, then the area of all probes."""
    region = session_number % TEST_REGIONS
    return (
        Span(region * TEST_BYTES, TEST_BYTES),
        Span(TEST_REGIONS * TEST_BYTES, AREA_PIECES * PIECE_BYTES),
    )


class Prober:
    """The sending side of one session's probes."""

    def __init__(self, channel: Channel, bulk: BulkSender, scratch_slot: bytes, pattern: memoryview) -> None:
        self._channel = channel
        self._bulk = bulk
        self._slot = scratch_slot
        self._pattern = pattern
        self._next_id = secrets.randbits(31)
        self._waiting: tuple[int, asyncio.Future[ProbeResult]] | None = None

    def on_result(self, result: ProbeResult) -> None:
        """The receiver's answer."""
        if self._waiting is not None and self._waiting[0] == result.probe_id and not self._waiting[1].done():
            self._waiting[1].set_result(result)

    async def self_test(self) -> float:
        """One put whose bytes the receiver checks. Returns its round trip in seconds. Raises `TransferError`."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        answer = self._begin(TEST_BYTES, verify=True)
        await self._put(0, TEST_BYTES)
        result = await answer
        if not result.intact:
            raise TransferError("the self-test arrived changed")
        return loop.time() - start

    async def once(self, num_bytes: int, piece: int, busy: Callable[[], bool]) -> ProbeResult | None:
        """One probe of about `num_bytes`, in pieces of `piece` bytes; None when it gave way to a real transfer.

        Raises `TransferError`.
        """
        count = max(MIN_PIECES, -(-num_bytes // piece))
        answer = self._begin(count * piece, verify=False)
        free = asyncio.Semaphore(PIECES_UNDER_WAY)
        gave_way = False

        async def put(index: int) -> None:
            nonlocal gave_way
            async with free:
                gave_way = gave_way or busy()
                if not gave_way:
                    await self._put(TEST_BYTES + index % AREA_PIECES * PIECE_BYTES, piece)

        try:
            async with asyncio.TaskGroup() as tasks:
                for index in range(count):
                    tasks.create_task(put(index))
        except ExceptionGroup as failed:
            first = failed.exceptions[0]
            if not isinstance(first, TransferError):
                raise
            raise TransferError(f"a probe failed: {first}") from first
        return None if gave_way else await answer

    async def measure(self, num_bytes: int, piece: int, busy: Callable[[], bool]) -> tuple[int, float] | None:
        """Bytes and seconds of the median of three probes, each of at least 50 ms; None when they gave way.

        Begins with `num_bytes` in pieces of `piece` bytes and enlarges both: the whole until it takes long enough, the
        pieces as long as one takes next to no time, since the cost of each would be measured instead of the link.
        """
        found: list[ProbeResult] = []
        while len(found) < ROUNDS:
            result = None if busy() else await self.once(num_bytes, piece, busy)
            if result is None:
                return None
            wanted = _enlarged(num_bytes, piece, result)
            if wanted != (num_bytes, piece):
                num_bytes, piece = wanted
                found.clear()
            else:
                found.append(result)
                num_bytes = min(num_bytes, _enough(result))
        rates = {result.tail_bytes / result.tail_s: result for result in found if result.tail_s > 0.0}
        if not rates:
            return None
        middle = rates[median_low(rates)]
        return middle.tail_bytes, middle.tail_s

    def _begin(self, num_bytes: int, *, verify: bool) -> asyncio.Future[ProbeResult]:
        self._next_id = (self._next_id + 1) & 0x7FFFFFFF
        answer: asyncio.Future[ProbeResult] = asyncio.get_running_loop().create_future()
        self._waiting = (self._next_id, answer)
        self._channel.send(ProbeBegin(probe_id=self._next_id, num_bytes=num_bytes, verify=verify))
        return answer

    async def _put(self, offset: int, length: int) -> None:
        source = self._pattern[:length]
        note = PROBE_NOTE.pack(0, self._next_id, xxhash.xxh3_64_intdigest(source))
        await self._bulk.put(self._slot, offset, [source], note)


def first_piece(bytes_per_s: float) -> int:
    """Bytes of a piece that takes about 10 ms on a link of this rate."""
    return max(MIN_PIECE_BYTES, min(PIECE_BYTES, int(bytes_per_s * FIRST_PIECE_S)))


def _enlarged(num_bytes: int, piece: int, result: ProbeResult) -> tuple[int, int]:
    """What to probe with after this result: the same again if it was long enough and its pieces too."""
    if result.tail_s <= 0.0 or result.tail_bytes <= 0:
        return min(4 * num_bytes, MAX_PROBE_BYTES), PIECE_BYTES
    rate = result.tail_bytes / result.tail_s
    if piece < PIECE_BYTES and piece / rate < SHORT_PIECE_S:
        piece = min(4 * piece, PIECE_BYTES)
    needed = rate * MIN_PROBE_S
    if num_bytes < needed:
        num_bytes = min(max(2 * num_bytes, int(1.3 * needed)), MAX_PROBE_BYTES)
    return num_bytes, piece


def _enough(result: ProbeResult) -> int:
    """Bytes that take long enough at this result's rate: a first impression of a rate may have been far too high."""
    return max(MIN_PIECES * MIN_PIECE_BYTES, int(1.3 * MIN_PROBE_S * result.tail_bytes / result.tail_s))


@dataclass(slots=True)
class ProbeReceipt:
    """The receiving side of one session's probes: at most one at a time, a new one replaces the last."""

    spans: tuple[Span, Span]
    current: ProbeBegin | None = None
    intact: bool = True
    landings: list[tuple[float, int]] = field(default_factory=list)
    early: list[tuple[float, int, int, bytes]] = field(default_factory=list)

    def begin(self, probe: ProbeBegin, scratch: memoryview) -> ProbeResult | None:
        """The sender announced a probe. Its puts go another way and may be here already."""
        self.current, self.intact, self.landings = probe, 0 < probe.num_bytes <= 2 * MAX_PROBE_BYTES, []
        if not self.intact:
            self.current = None
            return ProbeResult(probe_id=probe.probe_id, intact=False, tail_bytes=0, tail_s=0.0)
        early, self.early = self.early, []
        result = None
        for now, offset, length, note in early:
            if PROBE_NOTE.unpack(note)[1] == probe.probe_id:  # others are of a probe that gave way
                result = self.landed(now, offset, length, note, scratch) or result
        return result

    def landed(self, now: float, offset: int, length: int, note: bytes, scratch: memoryview) -> ProbeResult | None:
        """A piece is there; the result when it was the last one."""
        if len(note) != PROBE_NOTE.size:
            return None
        _, probe_id, digest = PROBE_NOTE.unpack(note)
        probe = self.current
        if probe is None or probe.probe_id != probe_id:
            if len(self.early) < MAX_EARLY_PIECES:
                self.early.append((now, offset, length, note))
            return None
        self.landings.append((now, length))
        if probe.verify:
            base = self.spans[0].offset + offset
            self.intact = self.intact and xxhash.xxh3_64_intdigest(scratch[base : base + length]) == digest
        if sum(count for _, count in self.landings) < probe.num_bytes:
            return None
        self.current = None
        tail_bytes, tail_s = tail(self.landings) or (0, 0.0)
        return ProbeResult(probe_id=probe_id, intact=self.intact, tail_bytes=tail_bytes, tail_s=tail_s)
