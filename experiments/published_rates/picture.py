"""All residuals as a picture: what we simulate against what was printed, beside the band of 10 %."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from experiments.published_rates.figures import CHECKED, FITTED, LOOSE, Figure
from simulator.drawing.style import FONT, GREY, PALE, figure, png

PICTURE = "published_rates.png"
BAND = 10.0
"""Percent to either side of what was printed."""
WIDTH_INCHES, LINE_INCHES, EDGE_INCHES = 15.5, 0.29, 1.7
_LOOKS = {FITTED: ("#0072B2", "o"), CHECKED: ("#009E73", "^"), LOOSE: ("#D55E00", "D")}
_WORDS = {
    FITTED: "fitted: constants were chosen by it",
    CHECKED: "checked: they were not",
    LOOSE: "loose: too little is said of the set-up",
}
_SIGNS = {"below": "≤ ", "above": "≥ ", "": ""}
Lines = list[str | Figure]


def lines_of(figures: Sequence[Figure]) -> Lines:
    """From the top: each source and set-up, then its figures."""
    found: Lines = []
    for (source, where), group in groupby(figures, key=lambda one: (one.source, one.where)):
        title = source.split(", experiments/")[0]
        found += [f"{title}: {where}" if where else title, *group]
    return found


def draw(figures: Sequence[Figure]) -> bytes:
    """A PNG. Raises `ConfigError` without matplotlib."""
    lines = lines_of(figures)
    with figure(WIDTH_INCHES, EDGE_INCHES + LINE_INCHES * len(lines)) as made:
        axes = made.subplots()
        made.suptitle("What the roofline makes of printed figures: residuals", fontsize=FONT + 2)
        axes.set_xlabel("simulated against printed (%)")
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        axes.spines["left"].set_visible(False)
        axes.axvspan(-BAND, BAND, color=PALE, alpha=0.6, linewidth=0, zorder=0, label=f"within {BAND:g} %")
        axes.axvline(0.0, color=GREY, linewidth=1.4, zorder=1)
        for row, line in enumerate(lines):
            if isinstance(line, Figure):
                _dot(axes, row, line)
        for use, (colour, marker) in _LOOKS.items():
            axes.plot([], [], marker, color=colour, markersize=10, label=_WORDS[use])
        _name_lines(axes, lines)
        made.legend(loc="outside lower center", ncols=4, frameon=False, fontsize=FONT - 2)
        return png(made)


def _dot(axes: Any, row: int, one: Figure) -> None:
    """The residual, with a stem from none, and both numbers right of the axes."""
    colour, marker = _LOOKS[one.use]
    off = 100.0 * one.residual
    axes.plot([0.0, off], [row, row], color=colour, linewidth=2.0, zorder=2)
    axes.plot([off], [row], marker, color=colour, markersize=10, markeredgecolor="white", zorder=3)
    unit = "" if one.unit == "ratio" else f" {one.unit}"
    told = "met" if one.bound and off == 0.0 else f"{off:+.0f} %"
    numbers = f"{_SIGNS[one.bound]}{_plain(one.published)} → {_plain(one.ours)}{unit} ({told})"
    axes.annotate(numbers, (1.02, row), xycoords=("axes fraction", "data"), va="center", fontsize=FONT - 2,
                  annotation_clip=False)  # fmt: skip


def _name_lines(axes: Any, lines: Lines) -> None:
    axes.set_yticks(range(len(lines)), labels=[one.what if isinstance(one, Figure) else one for one in lines])
    axes.tick_params(axis="y", length=0, labelsize=FONT - 2)
    for label, line in zip(axes.get_yticklabels(), lines, strict=True):
        if isinstance(line, str):
            label.set_fontweight("bold")
    axes.annotate("printed → simulated (residual)", (1.02, 1.0), xycoords="axes fraction", xytext=(0, 8),
                  textcoords="offset points", fontsize=FONT - 2, fontweight="bold", annotation_clip=False)  # fmt: skip


def _plain(value: float) -> str:
    """Three or four digits."""
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:#.3g}".rstrip(".")
