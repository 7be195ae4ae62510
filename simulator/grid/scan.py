"""Grids over the rate, and the goodput that their rows show (the range is scanned, never bisected)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from simulator.goodput import Goodput, Point, at_rate, goodput_of
from simulator.grid.case import Case, Row, Value
from simulator.scenario import Scenario

RATE = "rate"


def at_rates(labels: dict[str, str | int | float], scenario: Scenario, rates: Iterable[float]) -> list[Case]:
    """The scenario at each mean rate of arrivals, requests per second, which becomes the label `rate`.

    Raises `ConfigError` for a rate that is not positive.
    """
    return [Case({**labels, RATE: rate}, at_rate(scenario, rate)) for rate in rates]


def goodputs(rows: Iterable[Row], by: Sequence[str], share: float = 0.9) -> dict[tuple[Value, ...], Goodput]:
    """The goodput of each combination of the labels `by`. Rows that differ only in other labels, such as the seed, are
    averaged at each rate; failed ones are left out. Raises `ConfigError` when nothing is left."""
    found: dict[tuple[Value, ...], dict[float, list[Row]]] = {}
    for row in rows:
        if not row.error:
            found.setdefault(tuple(row[name] for name in by), {}).setdefault(row.number(RATE), []).append(row)
    return {
        name: goodput_of([_point(rate, same) for rate, same in sorted(rates.items())], share)
        for name, rates in found.items()
    } or {(): goodput_of([], share)}


def _point(rate: float, rows: Sequence[Row]) -> Point:
    return Point(rate, _mean(rows, "usual.attained"), _mean(rows, "ecoserve.attained"))


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(row.number(name) for row in rows) / len(rows)


def bounds(found: Goodput) -> tuple[bool, bool]:
    """By the usual clock and by EcoServe's: whether goodput is the highest rate of the scan, so that it may be more."""
    last = max(point.rate for point in found.points)
    return found.goodput == last, found.goodput_ecoserve == last
