"""When requests arrive: processes as settings, drawn one gap at a time from a generator that is passed in."""

from __future__ import annotations

import math
from collections.abc import Iterator
from random import Random

import msgspec

from contracts.errors import ConfigError
from simulator.bounds import SHORTEST_S, bound

_KIND = "kind"
MOST_RATE = 1e9
"""Requests per second. Far beyond it the time between two is lost in rounding, and a run would never end."""
MOST_CV, LEAST_CV = 20.0, 1e-6
"""With a larger one nearly all gaps are nothing; with a smaller one they are a metronome's, which 0 asks for."""
_MOST_SWING = 0.999999


class Gamma(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="gamma", tag_field=_KIND):
    """`rate` requests a second with gaps of coefficient of variation `cv`: 1 is a Poisson process, 0 a metronome."""

    rate: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        bound("arrivals: rate", self.rate, most=MOST_RATE, above=True)
        _check_cv(self.cv)

    def expected(self, duration_s: float) -> float:
        """About how many come in so many seconds."""
        return self.rate * duration_s

    def span_s(self, num_requests: int) -> float:
        """About how long so many take to come."""
        return num_requests / self.rate

    def times(self, random: Random) -> Iterator[float]:
        """Seconds since the start, without end."""
        now = 0.0
        while True:
            now += _gap(random, self.cv) / self.rate
            yield now


class Steps(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="steps", tag_field=_KIND):
    """Each rate of `rates` (requests a second) for `step_s` seconds, the last one for good."""

    rates: tuple[float, ...]
    step_s: float
    cv: float = 1.0

    def __post_init__(self) -> None:
        fits = bool(self.rates) and all(0.0 <= rate <= MOST_RATE for rate in self.rates) and self.rates[-1] > 0.0
        _require(fits, "rates", f"must be one or more rates of at most {MOST_RATE:g}, none negative, the last positive")
        bound("arrivals: step_s", self.step_s, above=True)
        _check_cv(self.cv)

    def expected(self, duration_s: float) -> float:
        """About how many come in so many seconds."""
        last = len(self.rates) - 1
        spans = (max(0.0, min(self.step_s, duration_s - index * self.step_s)) for index in range(last))
        before = sum(rate * span for rate, span in zip(self.rates[:last], spans, strict=True))
        return before + self.rates[last] * max(0.0, duration_s - last * self.step_s)

    def span_s(self, num_requests: int) -> float:
        """About how long so many take to come."""
        left = float(num_requests)
        for index, rate in enumerate(self.rates[:-1]):
            if left <= rate * self.step_s:
                return index * self.step_s + (left / rate if left else 0.0)
            left -= rate * self.step_s
        return (len(self.rates) - 1) * self.step_s + left / self.rates[-1]

    def times(self, random: Random) -> Iterator[float]:
        """Seconds since the start, without end. Gaps are drawn in a time that runs as fast as the rate."""
        work, now, index = _gap(random, self.cv), 0.0, 0
        while True:
            rate = self.rates[index]
            end = math.inf if index == len(self.rates) - 1 else (index + 1) * self.step_s
            if work <= (end - now) * rate:
                now += work / rate
                yield now
                work = _gap(random, self.cv)
            else:
                work -= (end - now) * rate
                now, index = end, index + 1


class Diurnal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="diurnal", tag_field=_KIND):
    """A sine around `rate` with the relative height `swing`, once each `period_s`, beginning at its lowest point."""

    rate: float
    swing: float = 0.5
    period_s: float = 86_400.0
    cv: float = 1.0

    def __post_init__(self) -> None:
        bound("arrivals: rate", self.rate, most=MOST_RATE, above=True)
        bound("arrivals: swing", self.swing, most=_MOST_SWING)
        bound("arrivals: period_s", self.period_s, SHORTEST_S)
        _check_cv(self.cv)

    def expected(self, duration_s: float) -> float:
        """About how many come in so many seconds."""
        return self.rate * duration_s

    def span_s(self, num_requests: int) -> float:
        """About how long so many take to come."""
        return num_requests / self.rate

    def times(self, random: Random) -> Iterator[float]:
        """Seconds since the start, without end; the rate is taken to be constant over one gap."""
        now = 0.0
        while True:
            rate = self.rate * (1.0 - self.swing * math.cos(2.0 * math.pi * now / self.period_s))
            now += _gap(random, self.cv) / rate
            yield now


Arrivals = Gamma | Steps | Diurnal


def _gap(random: Random, cv: float) -> float:
    """A gap of mean 1."""
    if cv == 0.0:
        return 1.0
    if cv == 1.0:
        return random.expovariate(1.0)
    shape = 1.0 / (cv * cv)
    return random.gammavariate(shape, 1.0 / shape)


def _check_cv(cv: float) -> None:
    bound("arrivals: cv", cv, most=MOST_CV)
    if 0.0 < cv < LEAST_CV:
        raise ConfigError(f"arrivals: cv must be 0 or at least {LEAST_CV:g}, but is {cv:g}", param="cv")


def _require(holds: bool, name: str, must: str) -> None:
    if not holds:
        raise ConfigError(f"arrivals: {name} {must}", param=name)
