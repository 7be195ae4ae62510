"""Quantiles and means of a stream of values in bounded memory: exact for few values, within 0.5 % for many.

Source of the sketch: DDSketch (Masson, Rim, Lee, VLDB 2019): buckets whose bounds grow by a constant factor. It needs
no random numbers, so the same values give the same answers.
"""

from __future__ import annotations

import math

import msgspec

EXACT = 10_000
_GROWTH = 1.01
_LOG_GROWTH = math.log(_GROWTH)
_SMALLEST = 1e-9


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in a few numbers, in the unit of its values; all 0 without any."""

    count: int = 0
    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0
    most: float = 0.0


class Sketch:
    """Values that are not negative, one at a time."""

    __slots__ = ("_buckets", "_exact", "_most", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._total = 0.0
        self._most = 0.0
        self._exact: list[float] | None = []
        self._buckets: dict[int, int] = {}

    def add(self, value: float) -> None:
        """Take one value; a negative one counts as 0."""
        value = max(value, 0.0)
        self.count += 1
        self._total += value
        if value > self._most:  # noqa: PLR1730 (once a token)
            self._most = value
        exact = self._exact
        if exact is None:
            index = int(math.log(value if value > _SMALLEST else _SMALLEST) / _LOG_GROWTH + 4096.5)
            buckets = self._buckets
            buckets[index] = buckets.get(index, 0) + 1
            return
        exact.append(value)
        if len(exact) > EXACT:
            self._exact = None
            for kept in exact:
                index = int(math.log(max(kept, _SMALLEST)) / _LOG_GROWTH + 4096.5)
                self._buckets[index] = self._buckets.get(index, 0) + 1

    @property
    def mean(self) -> float:
        """0 without values."""
        return self._total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of all do not exceed; 0 without values."""
        if self.count == 0:
            return 0.0
        rank = min(self.count, max(1, math.ceil(share * self.count)))
        if self._exact is not None:
            self._exact.sort()
            return self._exact[rank - 1]
        for index in sorted(self._buckets):
            rank -= self._buckets[index]
            if rank <= 0:
                return min(self._most, math.exp((index - 4096) * _LOG_GROWTH))
        return self._most

    def summary(self) -> Summary:
        """All of it in a few numbers."""
        return Summary(
            count=self.count,
            mean=self.mean,
            p50=self.quantile(0.5),
            p90=self.quantile(0.9),
            p99=self.quantile(0.99),
            most=self._most,
        )


def jain_index(values: list[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything; 1 without any value above 0."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0.0 else 1.0
