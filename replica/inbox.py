"""From the transfer service's thread to the event loop: a bounded queue that never makes either of them wait.

Bounded by what is open: of each ticket at most one sign of life waits (the latest), and few other events can come; of
each peer its links and measurements. Over `limit` measurements and signs of life are dropped, which costs accuracy and
at worst a lease; words that end something are always kept.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable

from kvtransfer.events import Arriving, Measured, TransferEvent


class TransferInbox:
    """`put` from any thread, `take` on the loop it was made on."""

    def __init__(self, limit: int = 4096) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit
        self._lock = threading.Lock()
        self._waiting: list[TransferEvent] = []
        self._arriving: dict[str, int] = {}
        self._filled = asyncio.Event()
        self.dropped = 0

    def put(self, event: TransferEvent) -> None:
        """Queue one event."""
        with self._lock:
            if isinstance(event, Arriving) and (index := self._arriving.get(event.ticket_id)) is not None:
                self._waiting[index] = event
                return
            if len(self._waiting) >= self._limit and isinstance(event, Arriving | Measured):
                self.dropped += 1
                return
            if isinstance(event, Arriving):
                self._arriving[event.ticket_id] = len(self._waiting)
            self._waiting.append(event)
            wake = len(self._waiting) == 1
        if wake:
            self._call(self._filled.set)

    async def take(self) -> list[TransferEvent]:
        """Everything that waits, in order; waits for a first event."""
        taken: list[TransferEvent] = []
        while not taken:
            await self._filled.wait()
            self._filled.clear()
            with self._lock:
                taken, self._waiting = self._waiting, []
                self._arriving.clear()
        return taken

    def _call(self, function: Callable[[], None]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(function)
