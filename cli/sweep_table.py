"""What a sweep found, as lines that fit a terminal; the files have all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cli.sweep_axes import label_of
from simulator.goodput import Goodput
from simulator.grid import Row, Value

MAX_LINES = 60


def goodput_lines(by: Sequence[str], found: dict[tuple[Value, ...], Goodput]) -> Iterator[str]:
    """One line for each scan: the labels that differ, goodput by both clocks, and its dips."""
    shown = [number for number in range(len(by)) if len({name[number] for name in found}) > 1]
    heads = (*(by[number] for number in shown), "goodput/s", "EcoServe's clock", "dips at")
    rows = [
        (*(_word(name[number]) for number in shown), f"{one.goodput:g}", f"{one.goodput_ecoserve:g}",
         " ".join(f"{rate:g}" for rate in one.dips) or "-")
        for name, one in found.items()
    ]  # fmt: skip
    yield from _table(heads, rows)


def run_lines(axes: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """One line for each run."""
    heads = (*map(label_of, axes), "attained", "TTFT P90 (s)", "TPOT P90 (ms)", "busy")
    cells = [
        (*(_word(row.labels[label_of(name)]) for name in axes), f"{row.number('usual.attained'):.1%}",
         f"{row.number('usual.ttft_s.p90'):.3g}", f"{1e3 * row.number('usual.tpot_s.p90'):.3g}",
         f"{row.number('utilisation'):.0%}")
        for row in rows
    ]  # fmt: skip
    yield from _table(heads, cells)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = rows[:MAX_LINES]
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    for cells in (heads, *shown):
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more, in the files"


def _word(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
