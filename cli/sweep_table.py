"""What a sweep found, as lines that fit a terminal; the files have all of it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from cli.sweep_axes import label_of
from cli.terms import ATTAINED, CLOCKS, goodput_terms
from simulator.goodput import Goodput
from simulator.grid import Row, Value, bounds

MAX_LINES = 60


def goodput_lines(by: Sequence[str], found: dict[tuple[Value, ...], Goodput], share: float) -> Iterator[str]:
    """What the words mean, then one line for each scan: the labels that differ, goodput by both clocks, and its dips.
    `share` of requests within both targets is what goodput asks for."""
    yield from (*goodput_terms(share), *CLOCKS, "")
    shown = [number for number in range(len(by)) if len({name[number] for name in found}) > 1]
    heads = (*(by[number] for number in shown), "goodput/s", "by EcoServe's clock", "dips at")
    rows = []
    for name, one in found.items():
        usual, ecoserve = bounds(one)
        rows.append(
            (*(_word(name[number]) for number in shown), _goodput(one.goodput, bound=usual),
             _goodput(one.goodput_ecoserve, bound=ecoserve), " ".join(f"{rate:g}" for rate in one.dips) or "-")
        )  # fmt: skip
    yield from _table(heads, rows)


def run_lines(axes: Sequence[str], rows: Sequence[Row]) -> Iterator[str]:
    """What the words mean, then one line for each run, by the usual clock."""
    yield from (*ATTAINED, *CLOCKS, "Below is the usual clock.", "")
    heads = (*map(label_of, axes), "attained", "TTFT P90 (s)", "TPOT P90 (ms)", "busy")
    cells = [
        (*(_word(row.labels[label_of(name)]) for name in axes), f"{row.number('usual.attained'):.1%}",
         *_latencies(row), f"{row.number('utilisation'):.0%}")
        for row in rows
    ]  # fmt: skip
    yield from _table(heads, cells)


def _latencies(row: Row) -> tuple[str, str]:
    """TTFT in seconds, TPOT in ms, if anything was answered."""
    if not row.number("finished"):
        return "-", "-"
    return f"{row.number('usual.ttft_s.p90'):.3g}", f"{1e3 * row.number('usual.tpot_s.p90'):.3g}"


def _goodput(rate: float, *, bound: bool) -> str:
    return f">={rate:g}" if bound else f"{rate:g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    shown = rows[:MAX_LINES]
    widths = [max(map(len, column)) for column in zip(heads, *shown, strict=True)]
    for cells in (heads, *shown):
        yield "  ".join(f"{cell:>{width}}" for cell, width in zip(cells, widths, strict=True))
    if len(shown) < len(rows):
        yield f"and {len(rows) - len(shown)} more, in the files"


def _word(value: Value) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
