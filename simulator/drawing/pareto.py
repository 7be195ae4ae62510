"""TTFT against TPOT: which configuration gives which pair, and which pairs no other one beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.errors import ConfigError
from simulator.drawing.lines import finish
from simulator.drawing.style import FONT, GREY, darker, figure, looks, plain_log, png

_PAPER = {"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.85}
"""Behind words, so that no line goes through them; it lies below the markers."""


class TrailPoint(msgspec.Struct, frozen=True):
    """One run: seconds, and a word such as its rate (empty: none is written)."""

    ttft_s: float
    tpot_s: float
    word: str = ""


class Trail(msgspec.Struct, frozen=True):
    """Runs of one configuration, in order. The words of the first and the last are written."""

    name: str
    points: tuple[TrailPoint, ...]


def draw_pareto(
    trails: Sequence[Trail],
    *,
    title: str,
    quantile: str = "P90",
    ttft_target_s: float | None = None,
    tpot_target_s: float | None = None,
    note: str = "",
) -> bytes:
    """A PNG on logarithmic axes, whose legend says what filled and hollow markers are. Runs without a value above
    0 are left out. Raises `ConfigError` without a point, or without matplotlib."""
    known = [
        Trail(trail.name, tuple(p for p in trail.points if 0.0 < p.ttft_s < 1e9 and 0.0 < p.tpot_s < 1e9))
        for trail in trails
    ]
    everything = [point for trail in known for point in trail.points]
    if not everything:
        raise ConfigError("there is nothing to draw: no run has both a TTFT and a TPOT", param="plots")
    best = front(everything)
    look_of = looks([trail.name for trail in known])
    with figure() as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(f"TTFT {quantile} (s)")
        axes.set_ylabel(f"TPOT {quantile} (ms)")
        axes.margins(0.09)
        for trail in known:
            look = look_of[trail.name]
            xs, ys = [p.ttft_s for p in trail.points], [1e3 * p.tpot_s for p in trail.points]
            axes.plot(xs, ys, color=look.colour, linestyle=look.dash, linewidth=1.4, alpha=0.6, zorder=2)
            last = len(xs) - 1
            for number, (point, x, y) in enumerate(zip(trail.points, xs, ys, strict=True)):
                axes.plot([x], [y], look.marker, color=look.colour, zorder=4, markeredgewidth=2.0, markersize=10,
                          markerfacecolor=look.colour if point in best else "white")  # fmt: skip
                if point.word and number in (0, last):
                    axes.annotate(point.word, (x, y), xytext=(7, 6), textcoords="offset points", fontsize=FONT - 4,
                                  color=darker(look.colour), zorder=3.5, bbox=_PAPER)  # fmt: skip
        _mark_box(axes, ttft_target_s, tpot_target_s)
        for axis in (axes.xaxis, axes.yaxis):
            plain_log(axis)
        _explain_markers(made, axes)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, [(trail.name, look_of[trail.name].colour, trail.points[-1].ttft_s,
                             1e3 * trail.points[-1].tpot_s) for trail in known if trail.points])  # fmt: skip
        return png(made)


def front(points: Sequence[TrailPoint]) -> set[TrailPoint]:
    """Those that no other one beats in one value without losing in the other."""
    found: set[TrailPoint] = set()
    least = float("inf")
    for point in sorted(points, key=lambda p: (p.ttft_s, p.tpot_s)):
        if point.tpot_s < least:
            least = point.tpot_s
            found.add(point)
    return found


def _explain_markers(made: Any, axes: Any) -> None:
    for label, face in (("filled: no other run is better in both", GREY), ("hollow: another run is", "white")):
        axes.plot([], [], "o", color=GREY, markersize=10, markeredgewidth=2.0, markerfacecolor=face, label=label)
    made.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=FONT - 2, handletextpad=0.2)


def _mark_box(axes: Any, ttft_s: float | None, tpot_s: float | None) -> None:
    """The pairs within both targets: all that is left of the corner and below it."""
    if ttft_s is None or tpot_s is None:
        return
    corner_s, corner_ms = ttft_s, 1e3 * tpot_s
    left, right = axes.get_xlim()
    bottom, top = axes.get_ylim()
    left, bottom = min(left, 0.7 * corner_s), min(bottom, 0.7 * corner_ms)
    axes.set_xlim(left, max(right, 1.3 * corner_s))
    axes.set_ylim(bottom, max(top, 1.3 * corner_ms))
    axes.fill_between([left, corner_s], bottom, corner_ms, color="#009E73", alpha=0.10, linewidth=0, zorder=0)
    axes.annotate("within both targets", (left, corner_ms), xytext=(6, -6), textcoords="offset points",
                  ha="left", va="top", color=GREY, fontsize=12, zorder=3.5, bbox=_PAPER)  # fmt: skip
