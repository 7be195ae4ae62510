"""Goodput of one system: rates around the knee are scanned, and the points around it refined. Never a bisection.

Rates go up from well below the closed form's estimate, so that dips at low load are seen, until at two rates in a row
fewer than half of the requests are within their targets by both clocks; then one more rate between the last that
holds at P90 and the next. Goodput is where attainment, drawn straight from the highest scanned rate that holds to the
next, crosses the quantile; 0 when none holds, and with `>=` when the highest rate scanned still holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path

import msgspec

from contracts.errors import PhaseServeError
from experiments.ecoserve.versions import stored
from simulator.goodput import at_rate, interpolated_goodput
from simulator.grid import Case, Row, run_grid
from simulator.grid.case import key_of
from simulator.scenario import Scenario

STEPS = (0.4, 0.6, 0.75, 0.9, 1.05, 1.2, 1.4)
COARSE_STEPS = (0.6, 0.8, 1.0, 1.2)
QUICK_STEPS = (0.5, 1.0)
SHARES = (0.5, 0.9, 0.99)
HOPELESS = 0.5


class RunFailed(PhaseServeError):
    """A run of a scan gave no report."""

    code = "run_failed"


class NotRun(RunFailed):
    """Its rows are not in the store, and only those are to be shown."""

    code = "not_run"


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much a scan may take: rates in multiples of the estimate, seeds, where rows are kept, processes. `duration`
    is in lifetimes of a request. With a `version` of the code its rows in the store are shown, and nothing is run."""

    steps: tuple[float, ...] = STEPS
    seeds: int = 1
    refine: bool = True
    store: Path | None = None
    workers: int = 1
    duration: float = 3.0
    version: str = ""


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What was scanned: by rate, attained shares by the usual clock and by EcoServe's, and figures at that rate."""

    system: str
    rule: str
    points: tuple[tuple[float, float, float], ...]
    figures: tuple[Row, ...] = ()

    def goodput(self, share: float, clock: int = 1) -> tuple[float, bool]:
        """Requests per second, and whether the highest rate scanned still holds. `clock`: 1 the usual, 2 EcoServe's."""
        return interpolated_goodput([(point[0], point[clock]) for point in self.points], share)

    def dips(self, share: float, clock: int = 1) -> list[float]:
        """Scanned rates below the goodput that do not hold."""
        limit, _ = self.goodput(share, clock)
        return [point[0] for point in self.points if point[0] < limit and point[clock] < share]


def scan(system: str, rule: str, base: Scenario, estimate: float, duration_s: float, budget: Budget) -> Found:
    """Run the scenario at rates around `estimate` (requests per second), `duration_s` each."""
    rows: dict[float, list[Row]] = {}
    bad = 0
    for step in budget.steps:
        rate = round(step * estimate, 3)
        rows[rate] = _run(system, rule, base, rate, duration_s, budget)
        bad = bad + 1 if max(_point(rate, rows[rate])[1:]) < HOPELESS else 0
        if bad == 2:
            break
    points = [_point(rate, same) for rate, same in sorted(rows.items())]
    knees = [(low[0], high[0]) for low, high in pairwise(points) if low[1] >= SHARES[1] > high[1]]
    if budget.refine and knees:
        rate = round(sum(knees[-1]) / 2, 3)
        rows[rate] = _run(system, rule, base, rate, duration_s, budget)
        points = [_point(rate, same) for rate, same in sorted(rows.items())]
    return Found(
        system=system, rule=rule, points=tuple(points), figures=tuple(same[0] for _, same in sorted(rows.items()))
    )


def at_one_rate(system: str, rule: str, base: Scenario, rate: float, duration_s: float, budget: Budget) -> float:
    """Attained share by EcoServe's clock."""
    return _point(rate, _run(system, rule, base, rate, duration_s, budget))[2]


def _run(system: str, rule: str, base: Scenario, rate: float, duration_s: float, budget: Budget) -> list[Row]:
    made = msgspec.structs.replace(at_rate(base, rate), duration_s=duration_s, warmup_s=1.0 + duration_s / 3)
    cases = [
        Case({"system": system, "rule": rule, "rate": rate, "seed": seed}, msgspec.structs.replace(made, seed=seed))
        for seed in range(budget.seeds)
    ]
    if budget.version and budget.store is not None:
        kept, keys = _kept(budget.store), [key_of(case.scenario, None, budget.version) for case in cases]
        if not kept.keys() >= set(keys):
            raise NotRun(f"{system} at {rate:g} req/s is not in the store")
        return [kept[key] for key in keys]
    rows = run_grid(cases, budget.store, workers=min(budget.workers, len(cases)), progress=False)
    for row in rows:
        if row.error:
            raise RunFailed(f"{system} at {rate:g} req/s: {row.error}")
    return rows


@cache
def _kept(store: Path) -> dict[str, Row]:
    """Rows that the store holds, by name."""
    return stored(store)


def _point(rate: float, rows: Sequence[Row]) -> tuple[float, float, float]:
    usual = sum(row.number("usual.attained") for row in rows) / len(rows)
    return rate, usual, sum(row.number("ecoserve.attained") for row in rows) / len(rows)
