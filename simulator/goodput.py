"""Goodput: the highest rate of a scanned range at which enough requests meet their targets, and every dip below it.

Attainment is not monotone in the rate, so the range is scanned and never bisected.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise

import msgspec

from contracts.errors import ConfigError
from simulator.arrivals import MOST_RATE, Arrivals, Steps
from simulator.bounds import bound
from simulator.scenario import Scenario


class Point(msgspec.Struct, frozen=True):
    """One rate, in requests per second: the share of requests within both targets by either clock."""

    rate: float
    attained: float
    attained_ecoserve: float


class Goodput(msgspec.Struct, frozen=True, kw_only=True):
    """`goodput` is the highest rate with at least `share` attained (0: none), `dips` are lower ones without;
    `goodput_ecoserve` and `dips_ecoserve` by EcoServe's clock."""

    share: float
    goodput: float
    goodput_ecoserve: float
    dips: tuple[float, ...]
    dips_ecoserve: tuple[float, ...]
    points: tuple[Point, ...]


def goodput_of(points: Iterable[Point], share: float) -> Goodput:
    """What points in order of rate say. Raises `ConfigError` without one."""
    known = tuple(points)
    if not known:
        raise ConfigError("a scan needs one rate or more", param="rates")
    usual = [(point.rate, point.attained >= share) for point in known]
    ecoserve = [(point.rate, point.attained_ecoserve >= share) for point in known]
    goodput, goodput_ecoserve = _highest(usual), _highest(ecoserve)
    return Goodput(
        share=share,
        goodput=goodput,
        goodput_ecoserve=goodput_ecoserve,
        dips=tuple(rate for rate, met in usual if rate < goodput and not met),
        dips_ecoserve=tuple(rate for rate, met in ecoserve if rate < goodput_ecoserve and not met),
        points=known,
    )


def interpolated_goodput(points: Sequence[tuple[float, float]], share: float) -> tuple[float, bool]:
    """A finer figure than the highest rate that holds: where attainment, on a straight line from that rate to the next
    scanned one, falls below `share`. `points` are (rate, attained) in order of rate.

    The rate in requests per second, 0 when none holds; and whether the last one still does, so that it may be more.
    """
    if not points or all(attained < share for _, attained in points):
        return 0.0, False
    if points[-1][1] >= share:
        return points[-1][0], True
    (rate, over), (above, under) = [pair for pair in pairwise(points) if pair[0][1] >= share > pair[1][1]][-1]
    return rate + (above - rate) * (over - share) / (over - under), False


def _highest(seen: Iterable[tuple[float, bool]]) -> float:
    return max((rate for rate, met in seen if met), default=0.0)


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """The same scenario with this mean rate of arrivals, in requests per second; a trace runs faster or slower.

    Raises `ConfigError` for a rate that is not positive, and for a trace that has none.
    """
    bound("rate", rate, most=MOST_RATE, above=True)
    workload = scenario.workload
    if workload.trace is not None:
        rows = list(msgspec.structs.replace(workload.trace, speed=1.0, repeat=False).rows())
        if rows[-1].at_s <= 0.0:
            raise ConfigError(
                f"trace {workload.trace.path} has no rate to scale: all its requests come at one moment", param="rate"
            )
        trace = msgspec.structs.replace(workload.trace, speed=rate / (len(rows) / rows[-1].at_s))
        changed = msgspec.structs.replace(workload, trace=trace)
    else:
        changed = msgspec.structs.replace(workload, arrivals=_with_rate(workload.arrivals, rate))
    return msgspec.structs.replace(scenario, workload=changed)


def _with_rate(arrivals: Arrivals, rate: float) -> Arrivals:
    if isinstance(arrivals, Steps):
        mean = sum(arrivals.rates) / len(arrivals.rates)
        return msgspec.structs.replace(arrivals, rates=tuple(old * rate / mean for old in arrivals.rates))
    return msgspec.structs.replace(arrivals, rate=rate)
