"""The bandwidth of one link from measured transfers. Pure.

Each sample weighs by its size (a sum of bytes over a sum of seconds); the weight halves for every `half_life_s` of age
and falls to `KEPT` with each newer sample. Two samples in a row that agree with each other and not with what was known
mean that the link has changed: the older ones are dropped. So a change of rate is followed within three transfers,
a large one with the second, while a single outlier is not.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

MAX_SAMPLES = 16
KEPT = 0.7
MIN_S = 0.05
SHORTEST_S = 1e-6  # below the resolution of clocks
CHANGED = 1.1  # two samples further than this factor from what was known, on the same side,
AGREE = 1.25  # and within this factor of each other, are of a link that has changed


@dataclass(slots=True, frozen=True)
class Sample:
    """`num_bytes` within `duration_s`, measured at `at_s`. `at_least`: the link may have been faster."""

    num_bytes: int
    duration_s: float
    at_s: float
    at_least: bool = False

    @property
    def bytes_per_s(self) -> float:
        """Its rate."""
        return self.num_bytes / self.duration_s


class LinkEstimate:
    """Samples of one link. A transfer below `min_bytes` that took less than `MIN_S` tells about latency: ignored."""

    __slots__ = ("_half_life_s", "_known", "_min_bytes", "_samples")

    def __init__(self, half_life_s: float, min_bytes: int) -> None:
        self._half_life_s = half_life_s
        self._min_bytes = min_bytes
        self._samples: deque[Sample] = deque(maxlen=MAX_SAMPLES)
        self._known: tuple[float | None, float] = (None, 0.0)

    def add(self, num_bytes: int, duration_s: float, now: float, *, at_least: bool = False) -> bool:
        """Take one measurement, of `duration_s` seconds. Returns whether it counted.

        `at_least`: the link may be faster than that, so it counts only where it is faster than the estimate.
        """
        rate = self.bytes_per_s
        if at_least and rate is not None and num_bytes <= rate * duration_s:
            return False
        tiny = num_bytes < self._min_bytes and duration_s < MIN_S
        if tiny or num_bytes <= 0 or not SHORTEST_S <= duration_s < math.inf:
            return False
        sample = Sample(num_bytes, duration_s, now, at_least)
        if len(self._samples) > 1:
            known, previous = self._rate(list(self._samples)[:-1]), self._samples[-1]
            if _changed(known, previous, sample):
                self._samples.clear()
                self._samples.append(previous)
        if not at_least:  # a lower bound has nothing to say beside a measurement above it
            kept = [s for s in self._samples if not s.at_least or s.bytes_per_s >= sample.bytes_per_s]
            self._samples = deque(kept, maxlen=MAX_SAMPLES)
        self._samples.append(sample)
        self._known = self._estimate(list(self._samples))
        return True

    def forget(self) -> None:
        """The link is known to have changed: the next measurement alone is the estimate, until then it stays."""
        self._samples.clear()

    @property
    def bytes_per_s(self) -> float | None:
        """The estimate; None before the first measurement."""
        return self._known[0]

    @property
    def spread(self) -> float:
        """Relative standard deviation of the samples, weighted as in the estimate; 0 with fewer than two."""
        return self._known[1]

    def _estimate(self, samples: list[Sample]) -> tuple[float, float]:
        rate = self._rate(samples)
        if len(samples) < 2:
            return rate, 0.0
        weights = [w * s.num_bytes for w, s in zip(self._weights(samples), samples, strict=True)]
        squares = sum(w * (s.bytes_per_s - rate) ** 2 for w, s in zip(weights, samples, strict=True))
        return rate, math.sqrt(squares / sum(weights)) / rate

    def age_s(self, now: float) -> float | None:
        """Time since the last measurement that counted; None before the first."""
        return now - self._samples[-1].at_s if self._samples else None

    def _weights(self, samples: list[Sample]) -> list[float]:
        """Relative to the newest, so that an old estimate keeps its value; its age is told beside it."""
        newest = samples[-1].at_s
        return [
            math.pow(0.5, (newest - s.at_s) / self._half_life_s) * math.pow(KEPT, rank)
            for rank, s in zip(range(len(samples) - 1, -1, -1), samples, strict=True)
        ]

    def _rate(self, samples: list[Sample]) -> float:
        weights = self._weights(samples)
        seconds = sum(w * s.duration_s for w, s in zip(weights, samples, strict=True))
        return sum(w * s.num_bytes for w, s in zip(weights, samples, strict=True)) / seconds


def _changed(known: float, previous: Sample, new: Sample) -> bool:
    low, high = sorted((previous.bytes_per_s, new.bytes_per_s))
    if low > CHANGED * known:  # what is above a lower bound does not contradict it
        return high <= AGREE * low or (previous if previous.bytes_per_s == low else new).at_least
    return high * CHANGED < known and high <= AGREE * low
