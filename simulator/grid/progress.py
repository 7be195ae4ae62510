"""How far a grid is: a bar on a terminal, else a line now and then. Always on standard error."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
import time
from typing import Any, Protocol

_EVERY_S = 15.0
_TELLING = 3
"""So many runs must be over before the time left is guessed from them."""
_UNTOLD = "{l_bar}{bar}| {n_fmt}/{total_fmt} [{elapsed}]"


class Progress(Protocol):
    """Told of each case that is over."""

    def step(self) -> None:
        """One more case."""

    def close(self) -> None:
        """No more will come."""


def progress_of(total: int, kept: int) -> Progress:
    """A bar where there is a terminal and tqdm; `kept` of the `total` cases were there before."""
    if sys.stderr.isatty() and os.get_terminal_size(sys.stderr.fileno()).columns and _has_tqdm():
        return Bar(total, kept)
    return Lines(total, kept)


def _has_tqdm() -> bool:
    return importlib.util.find_spec("tqdm") is not None


class Silent:
    """Says nothing."""

    def step(self) -> None:
        """One more case."""

    def close(self) -> None:
        """No more will come."""


class Bar:
    """tqdm's bar, with the time left once that can be guessed."""

    def __init__(self, total: int, kept: int) -> None:
        bar: Any = importlib.import_module("tqdm").tqdm
        bar.monitor_interval = 0
        self._bar = bar(
            total=total,
            initial=kept,
            unit="run",
            dynamic_ncols=True,
            smoothing=0.1,
            file=sys.stderr,
            bar_format=_UNTOLD,
        )
        self._told_at = kept + _TELLING

    def step(self) -> None:
        """One more case."""
        if self._bar.n + 1 >= self._told_at:
            self._bar.bar_format = None
        self._bar.update()

    def close(self) -> None:
        """No more will come."""
        self._bar.close()


class Lines:
    """One line at most every so often, and one at the end."""

    def __init__(self, total: int, kept: int) -> None:
        self._total, self._kept, self._done = total, kept, kept
        self._started = self._said = time.monotonic()
        self._say(f"{kept} of {total} runs are there already" if kept else f"{total} runs")

    def step(self) -> None:
        """One more case."""
        self._done += 1
        now = time.monotonic()
        if now - self._said >= _EVERY_S and self._done < self._total:
            self._said = now
            left_s = (now - self._started) / (self._done - self._kept) * (self._total - self._done)
            left = f", about {_words(left_s)} left" if self._done - self._kept >= _TELLING else ""
            self._say(f"{self._done} of {self._total} runs{left}")

    def close(self) -> None:
        """No more will come."""
        self._say(f"{self._done} of {self._total} runs in {_words(time.monotonic() - self._started)}")

    def _say(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def _words(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90.0 else f"{seconds / 60.0:.0f} min"
