"""How far the sweep is, one line a point, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable


class Progress:
    """Counts points that are measured in this run; earlier ones cost no time."""

    def __init__(self, total: int, write: Callable[[str], object] = sys.stderr.write) -> None:
        self._total = total
        self._write = write
        self._done = 0
        self._began = time.monotonic()

    def next(self, mode: str, mbit_per_s: float) -> None:
        """The next point begins."""
        where = f"[{self._done + 1:2d}/{self._total}] {mode} at {mbit_per_s:g} Mbit/s"
        self._write(f"{where}, {self._left()}\n")

    def done(self) -> None:
        """It ended."""
        self._done += 1

    def end(self) -> None:
        """All have."""
        self._write(f"{self._done} points in {_minutes(time.monotonic() - self._began)}\n")

    def _left(self) -> str:
        if not self._done:
            return "time left not known yet"
        each_s = (time.monotonic() - self._began) / self._done
        return f"about {_minutes(each_s * (self._total - self._done))} left"


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"
