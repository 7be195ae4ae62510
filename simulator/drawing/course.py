"""Attainment over the time of a run, with marks where something happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from simulator.drawing.lines import PERCENT, Line, finish, in_percent, level, plot
from simulator.drawing.style import FONT, GREY, figure, png

LEVELS = 3
"""Words of neighbouring marks are written at so many heights, so that they do not overlap."""
_DECIDED = {"color": GREY, "linewidth": 1.4, "linestyle": (0, (2, 2)), "zorder": 1}
_TURNED = {"color": "black", "linewidth": 2.0, "zorder": 1}


class Mark(msgspec.Struct, frozen=True):
    """Something that happened at `at_s` of the run, in a word."""

    at_s: float
    word: str


def draw_course(
    lines: Sequence[Line],
    marks: Sequence[Mark] = (),
    *,
    title: str,
    target: float | None = None,
    note: str = "",
    turns: Sequence[Mark] = (),
    marks_name: str = "",
    turns_name: str = "",
) -> bytes:
    """A PNG. Points of the lines are (seconds, share of the requests that arrived then within both targets). `marks`
    are what was decided, with words above the lines; `turns` what changed from outside, with words below them. The
    names of both stand below the axes.

    Raises `ConfigError` without a point, or without matplotlib.
    """
    with figure(13.0, 6.2) as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xlabel("time of arrival in the run (s)")
        axes.set_ylabel("requests within both targets (%)")
        ends = plot(axes, [in_percent(line) for line in lines])
        axes.set_ylim(-9.0 if turns else 0.0, 118.0)
        axes.set_yticks(range(0, 101, 20))
        axes.set_xlim(left=0.0)
        if target is not None:
            level(axes, target * PERCENT, label=f"{target * PERCENT:g} %")
        for number, mark in enumerate(marks):
            axes.axvline(mark.at_s, label="" if number else marks_name, **_DECIDED)
            _write(axes, mark, 116.0 - 5.0 * (number % LEVELS), "top")
        for number, turn in enumerate(turns):
            axes.axvline(turn.at_s, label="" if number else turns_name, **_TURNED)
            _write(axes, turn, -8.0, "bottom")
        if axes.get_legend_handles_labels()[1]:
            made.legend(loc="outside lower left", ncols=3, frameon=False, fontsize=FONT - 2)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, ends)
        return png(made)


def _write(axes: Any, mark: Mark, height: float, side: str) -> None:
    """The word right of its line."""
    axes.annotate(mark.word, xy=(mark.at_s, height), xytext=(4, 0), textcoords="offset points", va=side,
                  fontsize=FONT - 3, zorder=7,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})  # fmt: skip
