"""One hand-off at the receiver: which cells have landed, and what they add up to. Pure but for the events it holds."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import xxhash

from contracts.handoff import KVTicket
from kvtransfer.door import Guest
from kvtransfer.spans import Pool, Slot, by_layer
from kvtransfer.wire import Commit, put_digest

MIN_TAIL_WAIT_S = 1.0
TAIL_WAIT_FACTOR = 4.0


@dataclass(slots=True, eq=False)
class Incoming:
    """A ticket and its slot. `ended`: nothing that the sender says or sends counts any more. Times are of the loop."""

    ticket: KVTicket
    guest: Guest
    slot: Slot
    scheme: str
    begun: bool = False
    ended: bool = False
    stop_requested: bool = False
    commit: Commit | None = None
    committed_at: float = 0.0
    streaming_at: float = 0.0
    compute_done_at: float = 0.0
    landed_at: float = 0.0
    told_at: float = 0.0
    expected_at: float = 0.0
    num_puts: int = 0
    digest: int = 0
    bytes_left: int = 0
    sender_stopped: asyncio.Event = field(default_factory=asyncio.Event)
    guest_gone: asyncio.Event = field(default_factory=asyncio.Event)
    _landed: bytearray = field(default_factory=bytearray)

    def __post_init__(self) -> None:
        self._landed = bytearray(self.slot.num_cells)
        self.bytes_left = self.slot.num_bytes

    def digest_of(self, cells: range, pool: Pool, memory: memoryview) -> int:
        """Checksum of what lies in our blocks now."""
        digest = xxhash.xxh3_64()
        for layer, start, end in by_layer(cells, self.slot.num_blocks):
            for offset, length in pool.spans(self.ticket.blocks[start:end], layer):
                digest.update(memory[offset : offset + length])
        return digest.intdigest()

    def count(self, cells: range, offset: int, length: int, digest: int, now: float) -> bool | None:
        """Count cells that have landed intact. False if all of them were there before (a repetition), None if some."""
        seen = self._landed.count(1, cells.start, cells.stop)
        if seen:
            return False if seen == len(cells) else None
        self._landed[cells.start : cells.stop] = b"\1" * len(cells)
        self.bytes_left -= length
        self.num_puts += 1
        self.digest = (self.digest + put_digest(offset, length, digest)) & 0xFFFFFFFFFFFFFFFF
        self.landed_at = now
        self.streaming_at = self.streaming_at or now  # the sender's word for it may come later than its bytes
        return True

    def difference(self, commit: Commit) -> str | None:
        """What the sender committed and did not arrive as such; None if all agrees."""
        got = self.slot.num_bytes - self.bytes_left
        if (commit.num_bytes, commit.num_puts) != (got, self.num_puts):
            return f"{commit.num_puts} puts, {commit.num_bytes} bytes committed; {self.num_puts}, {got} arrived"
        return None if commit.digest == self.digest else "the checksum over all puts does not agree"

    def bytes_per_s(self, now: float) -> float:
        """This ticket's own pace so far, 0 before anything came."""
        passed = now - self.streaming_at if self.streaming_at else 0.0
        return (self.slot.num_bytes - self.bytes_left) / passed if passed > 0.0 else 0.0

    def tail_wait_s(self, now: float, silence_s: float) -> float:
        """How long after the commit, or the last landing since, the rest may take: by the rate of the link. Where the
        link has become slower than it was, which this ticket's own pace tells, up to `silence_s`."""
        rate, pace = self.guest.bytes_per_s, self.bytes_per_s(now)
        if rate <= 0.0:
            return silence_s
        slow_s = TAIL_WAIT_FACTOR * self.bytes_left / pace if pace > 0.0 else 0.0
        return max(MIN_TAIL_WAIT_S, TAIL_WAIT_FACTOR * self.bytes_left / rate, min(silence_s, slow_s))
