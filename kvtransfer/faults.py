"""Faults made on purpose at the sending end of any transport, from a value, so that a replica can be started with them.

Which fault hits which put follows from the seed and the order of the puts alone. No put's bytes are copied: a one-sided
transport can only send from registered memory.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

from kvtransfer.config import FaultName, Faults
from kvtransfer.protocol import Admit, BulkReceiver, BulkSender, OnLanded, TransferError, Transport
from kvtransfer.wire import PROBE_NOTE

REORDER_WAIT_S = 0.05
SHARES: tuple[FaultName, ...] = ("drop", "truncate", "corrupt", "reorder", "repeat")


class FaultPlan:
    """What happens to the next put. One plan for all connections of a transport."""

    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.num_puts = 0
        self._random = random.Random(faults.seed)

    def spares(self, note: bytes) -> bool:
        """Whether a put with this note is left alone."""
        return self.faults.spare_probes and len(note) == PROBE_NOTE.size

    def next(self) -> FaultName | None:
        """The fault of the next put. Each put draws equally many random values, so that the faults are independent."""
        self.num_puts += 1
        draws = {name: self._random.random() < getattr(self.faults, name) for name in SHARES}
        planned = self.faults.on_put.get(self.num_puts)
        if planned is not None:
            return planned
        if 0 < self.faults.die_after_puts < self.num_puts:
            return "die"
        if 0 < self.faults.stall_after_puts < self.num_puts:
            return "stall"
        return next((name for name in SHARES if draws[name]), None)

    def rotation(self, length: int) -> int:
        """By how much the bytes of a corrupt put move."""
        return self._random.randrange(1, length) if length > 1 else 0


class FaultySender:
    """A sender whose puts suffer the plan's faults."""

    def __init__(self, inner: BulkSender, plan: FaultPlan) -> None:
        self._inner = inner
        self._plan = plan
        self._free_at = 0.0
        self._lost: str | None = None
        self._ended = asyncio.Event()
        self._posted = asyncio.Event()
        self._stalled = False

    @property
    def device(self) -> str:
        """The inner one's."""
        return self._inner.device

    def moved(self) -> int | None:
        """The inner one's."""
        return self._inner.moved()

    def unsent(self) -> int:
        """The inner one's."""
        return self._inner.unsent()

    async def put(self, slot_id: bytes, offset: int, source: Sequence[memoryview], note: bytes = b"") -> None:
        """As the protocol says, except for the fault."""
        views = list(source)
        length = sum(view.nbytes for view in views)
        spared = self._plan.spares(note)
        fault = None if spared else self._plan.next()
        await self._pace(length)
        if fault == "stall" or (self._stalled and not spared):
            self._stalled = True
            await self._ended.wait()
        if fault in ("die", "fail"):
            self._lost = self._lost or f"a fault on purpose: {fault}"
            await self._inner.close()
        if self._lost is not None:
            raise TransferError(self._lost)
        if fault == "drop":
            return
        if fault == "truncate":
            views = _part(views, 0, length // 2)
        elif fault == "corrupt":
            start = self._plan.rotation(length)
            views = _part(views, start, length) + _part(views, 0, start)
        elif fault == "reorder":
            await self._until_another_put()
        for _ in range(2 if fault == "repeat" else 1):
            await self._inner.put(slot_id, offset, views, note)
        self._posted.set()

    async def close(self) -> None:
        """End what hangs, then close the inner one."""
        self._lost = self._lost or "the connection is closed"
        self._ended.set()
        await self._inner.close()

    async def _pace(self, length: int) -> None:
        faults = self._plan.faults
        now = asyncio.get_running_loop().time()
        ready_at = now + faults.delay_s
        if faults.bytes_per_s > 0.0:
            self._free_at = max(now, self._free_at) + length / faults.bytes_per_s
            ready_at = self._free_at + faults.delay_s
        if ready_at > now:
            await asyncio.sleep(ready_at - now)

    async def _until_another_put(self) -> None:
        self._posted = asyncio.Event()
        try:
            async with asyncio.timeout(REORDER_WAIT_S):
                await self._posted.wait()
        except TimeoutError:
            pass  # no other came


def _part(views: Sequence[memoryview], start: int, end: int) -> list[memoryview]:
    """The bytes from `start` to `end` of the concatenation."""
    found, begin = [], 0
    for view in views:
        low, high = max(start - begin, 0), min(end - begin, view.nbytes)
        if low < high:
            found.append(view[low:high])
        begin += view.nbytes
    return found


class FaultyTransport:
    """A transport whose senders make faults."""

    def __init__(self, inner: Transport, faults: Faults) -> None:
        self._inner = inner
        self.plan = FaultPlan(faults)

    @property
    def scheme(self) -> str:
        """The inner one's."""
        return self._inner.scheme

    def unavailable(self) -> str | None:
        """See the protocol."""
        return self._inner.unavailable()

    def receiver(self, memory: memoryview, on_landed: OnLanded, admit: Admit) -> BulkReceiver:
        """The inner one's: faults are the sender's."""
        return self._inner.receiver(memory, on_landed, admit)

    async def connect(self, endpoint: str, token: bytes, memory: memoryview, deadline_s: float) -> BulkSender:
        """See the protocol."""
        return FaultySender(await self._inner.connect(endpoint, token, memory, deadline_s), self.plan)
