"""Which layout is best over link rate and KV bytes per token, as a map with the rate that a formula predicts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import msgspec

from contracts.errors import ConfigError
from simulator.drawing.style import FONT, GREY, figure, looks, plain_log, png
from simulator.links import BYTES_PER_GBIT

_KIB = 1024.0
MAX_TICKS = 12
_BELOW = 0.2
"""Height of a cell's word within it where a formula's points lie on its middle."""
Place = tuple[float, str]
"""Of a row of cells: KV bytes per token, and its word."""


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """`best` at this link rate and this many KV bytes per token; `word` is written into the cell, `row` beside it
    (such as the model's name). Rows with as many KV bytes share their place, one above the other."""

    link_bytes_per_s: float
    kv_bytes_per_token: float
    best: str
    word: str = ""
    row: str = ""


def draw_crossover(
    cells: Sequence[Cell],
    *,
    title: str,
    predicted: Sequence[tuple[float, float]] = (),
    predicted_name: str = "predicted crossover",
    note: str = "",
) -> bytes:
    """A PNG. `predicted` are (KV bytes per token, link bytes per second). Cells may leave holes.

    Raises `ConfigError` without a cell, or without matplotlib.
    """
    if not cells:
        raise ConfigError("there is nothing to draw: the map has no cell", param="plots")
    xs = sorted({cell.link_bytes_per_s for cell in cells})
    lines = _bands(cells)
    names = sorted({cell.best for cell in cells})
    look_of = looks(names)
    columns = dict(zip(xs, _edges(xs), strict=True))
    with figure(11.5, max(5.2, 2.6 + 0.55 * len(lines))) as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.grid(visible=False)
        for cell in cells:
            look = look_of[cell.best]
            (left, right), (low, high) = columns[cell.link_bytes_per_s], lines[cell.kv_bytes_per_token, cell.row]
            axes.fill_between([left / BYTES_PER_GBIT, right / BYTES_PER_GBIT], [low / _KIB] * 2, [high / _KIB] * 2,
                              facecolor=look.colour, alpha=0.55, hatch=look.hatch, edgecolor="white",
                              linewidth=1.5)  # fmt: skip
            if cell.word:
                height = low * (high / low) ** (_BELOW if predicted else 0.5)
                axes.annotate(cell.word, (cell.link_bytes_per_s / BYTES_PER_GBIT, height / _KIB), ha="center",
                              va="center", fontsize=FONT - 3, zorder=7,
                              bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5, "alpha": 0.85})  # fmt: skip
        axes.set_xlim(columns[xs[0]][0] / BYTES_PER_GBIT, columns[xs[-1]][1] / BYTES_PER_GBIT)
        axes.set_ylim(min(low for low, _ in lines.values()) / _KIB, max(high for _, high in lines.values()) / _KIB)
        if predicted:
            points = sorted(predicted)
            axes.plot([rate / BYTES_PER_GBIT for _, rate in points], [kv / _KIB for kv, _ in points], "-",
                      color="black", marker="o", markersize=6, linewidth=2.6, label=predicted_name,
                      zorder=6)  # fmt: skip
        axes.set_xlabel("link rate of each host (Gbit/s)")
        axes.set_ylabel("KV per token (KiB)")
        if len(xs) > MAX_TICKS:
            plain_log(axes.xaxis)
        else:
            axes.set_xticks([x / BYTES_PER_GBIT for x in xs], labels=[f"{x / BYTES_PER_GBIT:.3g}" for x in xs])
        _mark_rows(axes, lines)
        _legend(made, axes, names)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        return png(made)


def _edges(values: Sequence[float]) -> list[tuple[float, float]]:
    """The borders of each value's cell: half way to its neighbours, as a factor."""
    if len(values) == 1:
        return [(values[0] / 2.0, values[0] * 2.0)]
    between = [math.sqrt(low * high) for low, high in pairwise(values)]
    first, last = values[0] ** 2 / between[0], values[-1] ** 2 / between[-1]
    borders = [first, *between, last]
    return list(pairwise(borders))


def _bands(cells: Sequence[Cell]) -> dict[Place, tuple[float, float]]:
    """The borders of each row of cells. Those with as many KV bytes share the place of that number evenly."""
    rows: dict[float, list[str]] = {}
    for cell in cells:
        words = rows.setdefault(cell.kv_bytes_per_token, [])
        if cell.row not in words:
            words.append(cell.row)
    found: dict[Place, tuple[float, float]] = {}
    values = sorted(rows)
    for value, (low, high) in zip(values, _edges(values), strict=True):
        step = (high / low) ** (1.0 / len(rows[value]))
        for number, word in enumerate(rows[value]):
            found[value, word] = (low * step**number, low * step ** (number + 1))
    return found


def _mark_rows(axes: Any, lines: Mapping[Place, tuple[float, float]]) -> None:
    """One tick for each number of KV bytes, and the word of each row of cells on the right."""
    values = sorted({value for value, _ in lines})
    axes.set_yticks([value / _KIB for value in values], labels=[f"{value / _KIB:.4g}" for value in values])
    axes.minorticks_off()
    for (_, word), (low, high) in lines.items():
        axes.annotate(word, (1.01, math.sqrt(low * high) / _KIB), xycoords=("axes fraction", "data"), va="center",
                      fontsize=FONT - 2)  # fmt: skip


def _legend(made: Any, axes: Any, names: Sequence[str]) -> None:
    look_of = looks(names)
    for name in names:
        look = look_of[name]
        axes.fill_between([], [], facecolor=look.colour, alpha=0.55, hatch=look.hatch, edgecolor="white", label=name)
    made.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=FONT - 1, handlelength=2.4, handleheight=1.3)
