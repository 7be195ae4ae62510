"""Lines over a number, each with its name at its end."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import msgspec

from contracts.errors import ConfigError
from simulator.drawing.style import GREY, figure, label_ends, looks, plain_log, png

PERCENT = 100.0


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """`points` are (x, y). `low` and `high`, if given, are the least and the most of several runs at each point.
    Points that are not finite leave a gap."""

    name: str
    points: tuple[tuple[float, float], ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()


def draw_lines(
    lines: Sequence[Line],
    *,
    title: str,
    x_label: str,
    y_label: str,
    log_x: bool = False,
    log_y: bool = False,
    target: float | None = None,
    target_name: str = "target",
    note: str = "",
) -> bytes:
    """A PNG; labels name the units. Raises `ConfigError` without a point, or without matplotlib."""
    with figure() as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xlabel(x_label)
        axes.set_ylabel(y_label)
        if log_x:
            axes.set_xscale("log")
        if log_y:
            axes.set_yscale("log")
        ends = plot(axes, lines)
        for axis in [*([axes.xaxis] if log_x else []), *([axes.yaxis] if log_y else [])]:
            plain_log(axis)
        if not log_y:
            axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
        if target is not None:
            mark_target(axes, target, target_name)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        finish(made, axes, ends)
        return png(made)


def plot(axes: Any, lines: Sequence[Line]) -> list[tuple[str, str, float, float]]:
    """Draw them; returns what `label_ends` wants. Raises `ConfigError` without a point."""
    known = {line.name: [point for point in line.points if math.isfinite(point[0] + point[1])] for line in lines}
    if not any(known.values()):
        raise ConfigError("there is nothing to draw: no point of any line", param="plots")
    ends = []
    for line in lines:
        look = looks(list(known))[line.name]
        xs, ys = [x for x, _ in line.points], [y for _, y in line.points]
        axes.plot(xs, ys, color=look.colour, marker=look.marker, linestyle=look.dash, zorder=3,
                  markeredgecolor="white", markeredgewidth=0.8)  # fmt: skip
        if line.low and line.high:
            axes.fill_between(xs, line.low, line.high, color=look.colour, alpha=0.15, linewidth=0)
        if known[line.name]:
            ends.append((line.name, look.colour, *known[line.name][-1]))
    return ends


def in_percent(line: Line) -> Line:
    """The same of shares between 0 and 1."""
    return msgspec.structs.replace(
        line,
        points=tuple((x, PERCENT * share) for x, share in line.points),
        low=tuple(PERCENT * share for share in line.low),
        high=tuple(PERCENT * share for share in line.high),
    )


def level(axes: Any, target: float, label: str = "") -> None:
    """A dashed line across the picture. `label` is for a legend."""
    named = {"label": label} if label else {}
    axes.axhline(target, color=GREY, linewidth=1.6, linestyle=(0, (6, 3)), zorder=2, **named)


def mark_target(axes: Any, target: float, name: str) -> None:
    """A level across the picture, with its name."""
    level(axes, target)
    axes.annotate(name, xy=(0.0, target), xycoords=("axes fraction", "data"), xytext=(6, -5),
                  textcoords="offset points", va="top", color=GREY, fontsize=12, zorder=7,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8})  # fmt: skip


def finish(made: Any, axes: Any, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """The names, when the axes have their place."""
    made.canvas.draw()
    label_ends(axes, ends)
