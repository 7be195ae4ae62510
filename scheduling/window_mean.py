"""A mean over the last seconds, in constant memory: sums over slices of the window."""

from __future__ import annotations

from collections import deque

SLICES = 16


class WindowMean:
    """The weighted mean of what was added during the last `window_s` seconds, to within one of `SLICES` slices."""

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / SLICES
        self._slices: deque[tuple[int, float, float]] = deque(maxlen=SLICES + 1)

    def add(self, now: float, value: float, weight: float = 1.0) -> None:
        """Count `value` at `now`, which never goes back."""
        number = int(now / self._slice_s)
        total, weights = value * weight, weight
        if self._slices and self._slices[-1][0] == number:
            _, known_total, known_weights = self._slices.pop()
            total, weights = known_total + total, known_weights + weight
        self._slices.append((number, total, weights))

    def weight(self, now: float) -> float:
        """The weights of what the window holds at `now`, together."""
        return sum(weights for _, _, weights in self._kept(now))

    def mean(self, now: float) -> float | None:
        """None when the window holds nothing that weighs."""
        kept = self._kept(now)
        weight = sum(weights for _, _, weights in kept)
        return sum(total for _, total, _ in kept) / weight if weight > 0.0 else None

    def _kept(self, now: float) -> list[tuple[int, float, float]]:
        oldest = int(now / self._slice_s) - SLICES
        return [part for part in self._slices if part[0] > oldest]
