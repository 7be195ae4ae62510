"""Virtual time: a heap of things to do, each at its moment, those of one moment in the order they were asked for.

Nothing here sleeps and nothing reads a clock of this machine: the same calls give the same run.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any


class Clock:
    """`now` in seconds since the start of the run; it only moves in `run`."""

    __slots__ = ("_heap", "_serial", "now", "num_done")

    def __init__(self) -> None:
        self.now = 0.0
        self.num_done = 0
        self._heap: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._serial = 0

    def at(self, when_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act(*args)` at `when_s`, or next of all when that is past."""
        self._serial += 1
        heappush(self._heap, (when_s if when_s > self.now else self.now, self._serial, act, args))

    def after(self, delay_s: float, act: Callable[..., None], *args: Any) -> None:
        """Call `act(*args)` in `delay_s` seconds."""
        self._serial += 1
        heappush(self._heap, (self.now + delay_s, self._serial, act, args))

    def count(self, num_acts: int) -> None:
        """So many acts were done within others, or (negative) were none."""
        self.num_done += num_acts

    def run(self, over: Callable[[], bool], until_s: float) -> bool:
        """Do what is due, in order, until `over()` says so after some act. False when `until_s` came before that."""
        heap = self._heap
        while heap:
            if heap[0][0] > until_s:
                break
            self.now, _, act, args = heappop(heap)
            act(*args)
            self.num_done += 1
            if over():
                return True
        self.now = max(self.now, until_s)
        return over()
