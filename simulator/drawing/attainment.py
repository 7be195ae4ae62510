"""Attainment against the arrival rate, with the goodput of each line and every dip below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from simulator.drawing.lines import PERCENT, Line, finish, in_percent, level, plot
from simulator.drawing.style import FONT, GREY, figure, png

_RING = {"markersize": 15, "markerfacecolor": "none", "markeredgewidth": 2.4}
_CROSS = {"markersize": 13, "color": "black", "markeredgewidth": 2.6}
NARROW = 1.0 / 3.0
"""The axis begins at no requests unless the lowest rate is more than this part of the highest: half of it were empty
then."""


def draw_attainment(
    lines: Sequence[Line],
    *,
    share: float = 0.9,
    title: str,
    x_label: str = "arrival rate (requests/s)",
    note: str = "",
    goodputs: Mapping[str, float] | None = None,
) -> bytes:
    """A PNG. Points of the lines are (rate, share of requests within both targets). A ring marks the goodput: what
    `goodputs` has of a line (0: none), else the highest rate of a point with `share` attained. A cross marks each lower
    rate without (a dip).

    Raises `ConfigError` without a point, or without matplotlib.
    """
    with figure() as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xlabel(x_label)
        axes.set_ylabel("requests within both targets (%)")
        ends = plot(axes, [in_percent(line) for line in lines])
        axes.set_ylim(-3.0, 103.0)
        axes.set_xlim(left=_left([rate for line in lines for rate, _ in line.points]))
        level(axes, share * PERCENT, label=f"{share * PERCENT:g} %")
        named = []
        shown = [line for line in lines if line.points]
        for line, (name, colour, x, y) in zip(shown, ends, strict=True):
            good = (goodputs or {}).get(name, _highest(line, share))
            _mark(axes, line, good, share, colour)
            least = "\u2265 " if good == max(rate for rate, _ in line.points) else ""
            named.append((f"{name}  {least}{good:.3g}/s" if good else f"{name}  no goodput", colour, x, y))
        _legend(made, axes)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, named)
        return png(made)


def _highest(line: Line, share: float) -> float:
    return max((rate for rate, attained in line.points if attained >= share), default=0.0)


def _left(rates: Sequence[float]) -> float:
    """Where the axis begins."""
    low, high = min(rates), max(rates)
    return low - 0.05 * (high - low) if NARROW * high < low < high else 0.0


def _mark(axes: Any, line: Line, good: float, share: float, colour: str) -> None:
    """The ring and the crosses of one line. Between two points the ring lies where the line crosses `share`."""
    if good:
        at = next((attained for rate, attained in line.points if rate == good), share)
        axes.plot([good], [at * PERCENT], "o", clip_on=False, markeredgecolor=colour, zorder=5, **_RING)
    for rate, attained in line.points:
        if rate < good and attained < share:
            axes.plot([rate], [attained * PERCENT], "x", zorder=6, **_CROSS)


def _legend(made: Any, axes: Any) -> None:
    """What the marks mean, below the axes, where they hide no point."""
    axes.plot([], [], "o", markeredgecolor=GREY, label="goodput", **_RING)
    axes.plot([], [], "x", label="dip: a lower rate without", **_CROSS)
    made.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=FONT - 2)
