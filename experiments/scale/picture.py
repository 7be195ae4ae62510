"""What a request and a decision cost over the size of the fleet, and Vidur's cost of a request beside it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from experiments.scale.parts import MILLION, NATIVE, OURS, VIDUR
from experiments.scale.store import Kept
from experiments.scale.tables import cases_of, middle, runs_of, trace_of
from experiments.scale.verdicts import CORES, GOAL_S, GOAL_TIMES
from simulator.drawing import missing, write_picture
from simulator.drawing.style import FONT, darker, figure, looks, plain_log, png

PICTURE = "scale.png"
WIDTH_INCHES, HEIGHT_INCHES = 16.5, 8.2
MICRO = 1e6
NEAR = 1.4
"""A point that is less than so many times as high has no room for a number between."""
Points = tuple[tuple[int, float], ...]


_LONG = {"code": "ours, code trace", "conv": "ours, conversation trace"}


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas and microseconds of CPU, one point for each size of the fleet. `measured`: a line joins them."""

    name: str
    points: Points
    measured: bool = True


def requests(shown: Mapping[str, Sequence[Kept]]) -> list[Series]:
    """CPU of the whole run for each request: beside Vidur the medians that the table has, then our other runs."""
    theirs, cpp, ours = (_medians(shown.get("vidur", ()), who) for who in (VIDUR, NATIVE, OURS))
    found = [
        Series(name=VIDUR, points=theirs),
        Series(name=NATIVE, points=cpp),
        Series(name="ours, as beside Vidur", points=ours),
        Series(name="ours, answers of 28 tokens", points=_longest(shown.get("replicas", ()))),
    ]
    by_trace: dict[str, list[Kept]] = {}
    for row in (*shown.get("memory", ()), *shown.get("requests", ())):
        by_trace.setdefault(trace_of(row), []).append(row)
    found += [Series(name=_LONG.get(trace, trace), points=_longest(rows)) for trace, rows in by_trace.items()]
    goals = [(replicas, us / GOAL_TIMES) for replicas, us in _faster(theirs, cpp)]
    goals += [(size, GOAL_S * CORES / MILLION * MICRO) for size, _ in _longest(shown.get("requests", ()))]
    goal = f"goals: a {GOAL_TIMES:g}th of Vidur, a million in {GOAL_S:g} s"
    found.append(Series(name=goal, points=tuple(goals), measured=False))
    return [one for one in found if one.points]


def decisions(shown: Mapping[str, Sequence[Kept]]) -> list[Series]:
    """`ClusterCore.handle` of an arrival and of a view, of runs that timed it."""
    rows = [row for row in shown.get("replicas", ()) if row.measured.decision_us.count]
    names = {"decision P99": ("decision_us", "p99"), "decision P50": ("decision_us", "p50"),
             "view P99": ("view_us", "p99"), "view P50": ("view_us", "p50")}  # fmt: skip
    found = [
        Series(
            name=name,
            points=tuple(sorted((row.job.case.replicas, getattr(getattr(row.measured, what), which)) for row in rows)),
        )
        for name, (what, which) in names.items()
    ]
    return [one for one in found if any(us for _, us in one.points)]


def draw_costs(shown: Mapping[str, Sequence[Kept]], path: Path) -> bool:
    """Write the PNG. False, and nothing drawn, without matplotlib or without a measurement."""
    panels = (requests(shown), decisions(shown))
    if missing() is not None or not any(panels):
        return False
    write_picture(path, draw(*panels))
    return True


def draw(of_request: Sequence[Series], of_decision: Sequence[Series]) -> bytes:
    """A PNG. Raises `ConfigError` without matplotlib."""
    shown = [
        (title, unit, series)
        for title, unit, series in (
            ("The whole simulation, for each request", "CPU (us per request)", of_request),
            ("The cluster core: a decision on an arrival, a view", "CPU (us each)", of_decision),
        )
        if series
    ]
    with figure(WIDTH_INCHES, HEIGHT_INCHES) as made:
        places = made.subplots(1, len(shown), squeeze=False)[0]
        for axes, (title, unit, series) in zip(places, shown, strict=True):
            axes.set_title(title, loc="left")
            axes.set_xlabel("replicas")
            axes.set_ylabel(unit)
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.margins(0.09)
            _plot(axes, series)
            plain_log(axes.yaxis)
            _decades(axes)
            axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.12), ncols=2, frameon=False, fontsize=FONT - 1)
        return png(made)


def _plot(axes: Any, series: Sequence[Series]) -> None:
    """Lines, with the number above each point, or below it where another lies closely above."""
    everything = [point for one in series for point in one.points]
    look_of = looks([one.name for one in series])
    for one in series:
        look = look_of[one.name]
        xs, ys = [x for x, _ in one.points], [y for _, y in one.points]
        axes.plot(xs, ys, color=look.colour, marker=look.marker, linestyle=look.dash if one.measured else "none",
                  markersize=11, markeredgecolor="white", label=one.name, zorder=4)  # fmt: skip
        for x, y in one.points:
            under = any(other == x and y < high < NEAR * y for other, high in everything)
            axes.annotate(f"{y:,.0f}", (x, y), xytext=(0, -9 if under else 9), textcoords="offset points",
                          ha="center", va="top" if under else "bottom", zorder=5, fontsize=FONT - 3,
                          color=darker(look.colour),
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3, "alpha": 0.85})  # fmt: skip


def _decades(axes: Any) -> None:
    """Sizes of fleets as powers of ten."""
    low, high = axes.get_xlim()
    powers = list(range(math.ceil(math.log10(low)), math.floor(math.log10(high)) + 1))
    axes.set_xticks([10.0**power for power in powers], labels=[f"{10**power:,}" for power in powers])
    axes.minorticks_off()


def _medians(rows: Sequence[Kept], who: str) -> Points:
    """Of repetitions."""
    cases = [(replicas, count, runs_of(rows, replicas, count, who)) for replicas, count in cases_of(rows)]
    return tuple((replicas, middle(runs, "cpu_s") / count * MICRO) for replicas, count, runs in cases if runs)


def _longest(rows: Sequence[Kept]) -> Points:
    """Of each size of the fleet the run with most requests."""
    best: dict[int, Kept] = {}
    for row in sorted(rows, key=lambda row: row.measured.requests):
        best[row.job.case.replicas] = row
    return tuple((size, row.measured.cpu_s / row.measured.requests * MICRO) for size, row in sorted(best.items()))


def _faster(*of: Points) -> Points:
    """The least of each size that all have."""
    known = [dict(points) for points in of]
    return tuple((size, min(one[size] for one in known)) for size in known[0] if all(size in one for one in known))
