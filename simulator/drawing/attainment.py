"""Attainment against the arrival rate, with the goodput of each line and every dip below it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from simulator.drawing.lines import Line, finish, mark_target, plot
from simulator.drawing.style import GREY, figure, png

PERCENT = 100.0


def draw_attainment(
    lines: Sequence[Line], *, share: float = 0.9, title: str, x_label: str = "arrival rate (requests/s)", note: str = ""
) -> bytes:
    """A PNG. Points of the lines are (rate, share of requests within both targets). A ring marks the goodput, the
    highest rate with `share` attained; a cross marks each lower rate without (a dip).

    Raises `ConfigError` without a point, or without matplotlib.
    """
    with figure() as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xlabel(x_label)
        axes.set_ylabel("requests within both targets (%)")
        ends = plot(axes, [_percent(line) for line in lines])
        axes.set_ylim(-3.0, 103.0)
        axes.set_xlim(left=0.0)
        mark_target(axes, share * PERCENT, f"{share * PERCENT:g} % (goodput: ring; dip: cross)")
        named = []
        shown = [line for line in lines if line.points]
        for number, (line, (name, colour, x, y)) in enumerate(zip(shown, ends, strict=True)):
            good = max((rate for rate, attained in line.points if attained >= share), default=0.0)
            for rate, attained in line.points:
                if rate == good:
                    axes.plot([rate], [attained * PERCENT], "o", markersize=14 + 2.5 * number, clip_on=False,
                              markerfacecolor="none", markeredgecolor=colour, markeredgewidth=2.4,
                              zorder=5)  # fmt: skip
                elif rate < good and attained < share:
                    axes.plot([rate], [attained * PERCENT], "x", markersize=13, color="black", markeredgewidth=2.6,
                              zorder=6)  # fmt: skip
            least = "\u2265 " if good == max(rate for rate, _ in line.points) else ""
            named.append((f"{name}  {least}{good:g}/s" if good else f"{name}  none", colour, x, y))
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, named)
        return png(made)


def _percent(line: Line) -> Line:
    return msgspec.structs.replace(
        line,
        points=tuple((rate, PERCENT * attained) for rate, attained in line.points),
        low=tuple(PERCENT * value for value in line.low),
        high=tuple(PERCENT * value for value in line.high),
    )
