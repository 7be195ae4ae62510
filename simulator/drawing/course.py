"""Attainment over the time of a run, with marks where something happened."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from simulator.drawing.lines import Line, finish, mark_target, plot
from simulator.drawing.style import FONT, GREY, figure, png

PERCENT = 100.0
LEVELS = 3
"""Words of neighbouring marks are written at so many heights, so that they do not overlap."""


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at `at_s` of the run, in a word."""

    at_s: float
    word: str


def draw_course(
    lines: Sequence[Line], marks: Sequence[Mark] = (), *, title: str, target: float | None = None, note: str = ""
) -> bytes:
    """A PNG. Points of the lines are (seconds, share of the requests that arrived then within both targets).

    Raises `ConfigError` without a point, or without matplotlib.
    """
    with figure(13.0, 6.2) as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xlabel("time of arrival in the run (s)")
        axes.set_ylabel("requests within both targets (%)")
        ends = plot(axes, [_percent(line) for line in lines])
        axes.set_ylim(0.0, 118.0)
        axes.set_yticks(range(0, 101, 20))
        axes.set_xlim(left=0.0)
        if target is not None:
            mark_target(axes, target * PERCENT, f"{target * PERCENT:g} %")
        for number, mark in enumerate(marks):
            axes.axvline(mark.at_s, color=GREY, linewidth=1.4, linestyle=(0, (2, 2)), zorder=1)
            axes.annotate(mark.word, xy=(mark.at_s, 116.0 - 5.0 * (number % LEVELS)), xytext=(3, 0),
                          textcoords="offset points", va="top", fontsize=FONT - 3, zorder=7,
                          bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})  # fmt: skip
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, ends)
        return png(made)


def _percent(line: Line) -> Line:
    points = tuple((at_s, PERCENT * share) for at_s, share in line.points)
    return msgspec.structs.replace(line, points=points)
