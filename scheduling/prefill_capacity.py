"""How much predicted prefill time the fleet works off per second, measured while requests wait for a place."""

from __future__ import annotations

from scheduling.window_mean import WindowMean

WINDOW_S = 30.0
MEASURED_AFTER_S = 2.0
LEAST_SHARE = 0.05
"""Of one replica each: a fleet slower than that has stopped for the moment, and the estimate would be without bound."""


class PrefillCapacity:
    """Only while there is a backlog does what is done tell what can be done."""

    def __init__(self) -> None:
        self._done = WindowMean(WINDOW_S)
        self._since: float | None = None

    def backlog_at(self, now: float) -> None:
        """A request waits for a place."""
        if self._since is None:
            self._since = now
            self._done = WindowMean(WINDOW_S)

    def backlog_gone(self) -> None:
        """None waits any more."""
        self._since = None

    def prefilled(self, prefill_s: float, now: float) -> None:
        """A prompt predicted to take this long is computed."""
        if self._since is not None:
            self._done.add(now, 1.0, prefill_s)

    def rate(self, replicas: int, now: float) -> float:
        """Predicted seconds of prefill done per second, at most `replicas` (all of them prefill all the time)."""
        if self._since is None or now - self._since < MEASURED_AFTER_S:
            return float(replicas)
        done_s = self._done.weight(now) / min(WINDOW_S, now - self._since)
        return min(float(replicas), max(LEAST_SHARE * replicas, done_s))
