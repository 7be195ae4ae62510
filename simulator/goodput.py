"""Goodput: the highest rate of a scanned range at which enough requests meet their targets, and every dip below it.

Attainment is not monotone in the rate (design §2), so the range is scanned and never bisected.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import msgspec

from contracts.errors import ConfigError
from simulator.arrivals import Arrivals, Steps
from simulator.report import Report
from simulator.run import simulate
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


def scan(
    scenario: Scenario,
    rates: Iterable[float],
    share: float = 0.9,
    run: Callable[[Scenario], Report] = simulate,
) -> Goodput:
    """Run the scenario at each rate. Raises `ConfigError` without a rate."""
    points = []
    for rate in sorted(rates):
        report = run(at_rate(scenario, rate))
        points.append(Point(rate, report.usual.attained, report.ecoserve.attained))
    return goodput_of(points, share)


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


def _highest(seen: Iterable[tuple[float, bool]]) -> float:
    return max((rate for rate, met in seen if met), default=0.0)


def at_rate(scenario: Scenario, rate: float) -> Scenario:
    """The same scenario with this mean rate of arrivals, in requests per second; a trace runs faster or slower.

    Raises `ConfigError` for a rate that is not positive.
    """
    if not rate > 0.0:
        raise ConfigError(f"rate must be positive, but is {rate:g}", param="rate")
    workload = scenario.workload
    if workload.trace is not None:
        rows = list(msgspec.structs.replace(workload.trace, speed=1.0, repeat=False).rows())
        own = len(rows) / max(1e-9, rows[-1].at_s)
        trace = msgspec.structs.replace(workload.trace, speed=rate / own)
        changed = msgspec.structs.replace(workload, trace=trace)
    else:
        changed = msgspec.structs.replace(workload, arrivals=_with_rate(workload.arrivals, rate))
    return msgspec.structs.replace(scenario, workload=changed)


def _with_rate(arrivals: Arrivals, rate: float) -> Arrivals:
    if isinstance(arrivals, Steps):
        mean = sum(arrivals.rates) / len(arrivals.rates)
        return msgspec.structs.replace(arrivals, rates=tuple(old * rate / mean for old in arrivals.rates))
    return msgspec.structs.replace(arrivals, rate=rate)
