"""The bandwidth of one link from measured transfers. Pure.

Each sample weighs by its bytes (a sum of bytes over a sum of seconds), halved for every `half_life_s` of age. Two
samples in a row that agree with each other and not with what was known mean that the link has changed: the older ones
are dropped, so that any change of rate is followed with the second transfer after it, while a single outlier is not.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

MAX_SAMPLES = 16
CHANGED = 1.25
"""Rates further apart than this factor are not of the same link."""


@dataclass(slots=True, frozen=True)
class Sample:
    """`num_bytes` within `duration_s`, measured at `at_s`."""

    num_bytes: int
    duration_s: float
    at_s: float

    @property
    def bytes_per_s(self) -> float:
        """Its rate."""
        return self.num_bytes / self.duration_s


class LinkEstimate:
    """Samples of one link. `min_bytes`: smaller transfers measure latency, not bandwidth, and are ignored."""

    __slots__ = ("_half_life_s", "_min_bytes", "_samples")

    def __init__(self, half_life_s: float, min_bytes: int) -> None:
        self._half_life_s = half_life_s
        self._min_bytes = min_bytes
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)

    def add(self, num_bytes: int, duration_s: float, now: float) -> bool:
        """Take one measurement, of `duration_s` seconds. Returns whether it counted."""
        if num_bytes < self._min_bytes or not 0.0 < duration_s < math.inf:
            return False
        sample = Sample(num_bytes, duration_s, now)
        known = self._rate(list(self._samples)[:-1], now)
        if known is not None and self._changed(known, self._samples[-1].bytes_per_s, sample.bytes_per_s):
            previous = self._samples[-1]
            self._samples.clear()
            self._samples.append(previous)
        self._samples.append(sample)
        return True

    def bytes_per_s(self, now: float) -> float | None:
        """The estimate; None before the first measurement."""
        return self._rate(list(self._samples), now)

    def spread(self, now: float) -> float:
        """Relative standard deviation of the samples, weighted as in the estimate; 0 with fewer than two."""
        rate = self.bytes_per_s(now)
        if rate is None or len(self._samples) < 2:
            return 0.0
        weights = [s.num_bytes * self._weight(s, now) for s in self._samples]
        total = sum(weights)
        variance = sum(w * (s.bytes_per_s - rate) ** 2 for w, s in zip(weights, self._samples, strict=True)) / total
        return math.sqrt(variance) / rate

    def age_s(self, now: float) -> float | None:
        """Time since the last measurement that counted; None before the first."""
        return now - self._samples[-1].at_s if self._samples else None

    def _weight(self, sample: Sample, now: float) -> float:
        # Relative to the newest sample, so that an old estimate keeps its value instead of vanishing.
        newest = self._samples[-1].at_s if self._samples else now
        return math.pow(0.5, max(0.0, newest - sample.at_s) / self._half_life_s)

    def _rate(self, samples: list[Sample], now: float) -> float | None:
        if not samples:
            return None
        weights = [self._weight(s, now) for s in samples]
        seconds = sum(w * s.duration_s for w, s in zip(weights, samples, strict=True))
        return sum(w * s.num_bytes for w, s in zip(weights, samples, strict=True)) / seconds if seconds > 0.0 else None

    def _changed(self, known: float, previous: float, new: float) -> bool:
        agree = max(previous, new) <= CHANGED * min(previous, new)
        slower = max(previous, new) * CHANGED < known
        faster = min(previous, new) > CHANGED * known
        return agree and (slower or faster)
