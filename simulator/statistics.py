"""Quantiles and means of a stream of values in bounded memory: exact for few values, within 0.5 % for many.

Source of the sketch: DDSketch (Masson, Rim, Lee, VLDB 2019): buckets whose bounds grow by a constant factor. It needs
no random numbers, so the same values give the same answers.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import repeat
from math import log

import msgspec

EXACT = 10_000
_GROWTH = 1.01
_LOG_GROWTH = log(_GROWTH)
_SMALLEST = 1e-9
_AT_ONCE = 64
_FINE = 2**40
"""Values are added up in whole parts of so many: the sum does not depend on their order."""


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

    __slots__ = ("_buckets", "_exact", "_most", "_new", "_total", "count")

    def __init__(self) -> None:
        self.count = 0
        self._new: list[tuple[float, int]] = []  # taken, but not yet counted: many are counted faster at once
        self._total = 0
        self._most = 0.0
        self._exact: array[float] | None = array("d")
        self._buckets: dict[int, int] = {}

    def add(self, value: float, times: int = 1) -> None:
        """Take one value, or the same one several times; a negative one counts as 0."""
        self.count += times
        self._new.append((value, times))
        if len(self._new) >= _AT_ONCE:
            self._settle()

    def extend(self, values: Sequence[float], times: int = 1) -> None:
        """Take each of these as often."""
        self.count += len(values) * times
        self._new += zip(values, repeat(times))
        if len(self._new) >= _AT_ONCE:
            self._settle()

    def _settle(self) -> None:
        """Count what was taken."""
        new = [(value if value > 0.0 else 0.0, times) for value, times in self._new]
        if not new:
            return
        self._new.clear()
        self._total += sum([round(value * _FINE) * times for value, times in new])
        self._most = max(self._most, max(new)[0])
        if self._exact is not None and self.count > EXACT:
            new += zip(self._exact, repeat(1))
            self._exact = None
        if self._exact is None:
            buckets = self._buckets
            for value, times in new:
                index = round(log(value if value > _SMALLEST else _SMALLEST) / _LOG_GROWTH)
                buckets[index] = buckets.get(index, 0) + times
            return
        for value, times in new:
            self._exact.extend((value,) * times)

    def take(self, other: Sketch) -> None:
        """All values of another one too; the answers do not depend on the order in which sketches are taken."""
        self._settle()
        other._settle()
        if self._exact is not None and other._exact is not None and self.count + other.count <= EXACT:
            self._exact += other._exact
        else:
            for sketch in (self, other):
                buckets = sketch._all_buckets()
                if sketch is self:
                    self._buckets, self._exact = buckets, None
                else:
                    for index, times in buckets.items():
                        self._buckets[index] = self._buckets.get(index, 0) + times
        self.count += other.count
        self._total += other._total
        self._most = max(self._most, other._most)

    def _all_buckets(self) -> dict[int, int]:
        buckets = dict(self._buckets)
        for value in self._exact or ():
            index = _index(value)
            buckets[index] = buckets.get(index, 0) + 1
        return buckets

    @property
    def mean(self) -> float:
        """0 without values."""
        self._settle()
        return self._total / (_FINE * self.count) if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The smallest value that at least `share` of all do not exceed; 0 without values."""
        if self.count == 0:
            return 0.0
        self._settle()
        rank = min(self.count, max(1, math.ceil(share * self.count)))
        if self._exact is not None:
            self._exact = array("d", sorted(self._exact))
            return self._exact[rank - 1]
        for index in sorted(self._buckets):
            rank -= self._buckets[index]
            if rank <= 0:
                return min(self._most, math.exp(index * _LOG_GROWTH))
        return self._most

    def summary(self) -> Summary:
        """All of it in a few numbers."""
        self._settle()
        return Summary(
            count=self.count,
            mean=self.mean,
            p50=self.quantile(0.5),
            p90=self.quantile(0.9),
            p99=self.quantile(0.99),
            most=self._most,
        )


def _index(value: float) -> int:
    return round(log(max(value, _SMALLEST)) / _LOG_GROWTH)


def jain_index(values: list[float]) -> float:
    """Jain's fairness index: 1 when all are equal, 1/n when one has everything; 1 without any value above 0."""
    squares = sum(value * value for value in values)
    return sum(values) ** 2 / (len(values) * squares) if squares > 0.0 else 1.0
