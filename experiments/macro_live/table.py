"""The Markdown tables of a comparison."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from experiments.macro_live.figures import Figures, goodput, middle

COLUMNS = {
    "on time": ("on_time", "share"),
    "on time, decode clock": ("on_time_decode", "share"),
    "TTFT P50": ("ttft_p50_s", "s"),
    "P90": ("ttft_p90_s", "s"),
    "P99": ("ttft_p99_s", "s"),
    "to first decode step P50": ("ready_p50_s", "s"),
    "P90 ": ("ready_p90_s", "s"),
    "P99 ": ("ready_p99_s", "s"),
    "switch wait P90": ("switch_p90_s", "s"),
    "TPOT P50 ms": ("tpot_p50_s", "ms"),
    "P90 ms": ("tpot_p90_s", "ms"),
    "P99 ms": ("tpot_p99_s", "ms"),
    "decode TPOT P50 ms": ("decode_tpot_p50_s", "ms"),
    "P90 ms ": ("decode_tpot_p90_s", "ms"),
    "P99 ms ": ("decode_tpot_p99_s", "ms"),
    "longest gap": ("max_gap_s", "s"),
    "longest wait": ("max_wait_s", "s"),
    "Jain": ("jain", "ratio"),
    "recovery": ("recovery_s", "s"),
    "failed": ("failed", "share"),
}
FORMATS = {"share": (100.0, ".0f"), "s": (1.0, ".2f"), "ms": (1e3, ".0f"), "ratio": (1.0, ".2f")}

Found = Mapping[tuple[str, str, float], Sequence[Figures]]
"""(load, layout, requests per second) -> the repeats."""


def table(found: Found) -> str:
    """One row for each load, rate and layout, each cell `median (least-most)`; then goodput on both clocks."""
    lines = ["| load | per s | layout | runs | " + " | ".join(name.strip() for name in COLUMNS) + " |"]
    lines.append("|---" * (4 + len(COLUMNS)) + "|")
    for load, layout, per_s in sorted(found, key=lambda point: (point[0], point[2], point[1])):
        repeats = found[load, layout, per_s]
        cells = [_cell(repeats, name, unit) for name, unit in COLUMNS.values()]
        lines.append(f"| {load} | {per_s:g} | {layout} | {len(repeats)} | " + " | ".join(cells) + " |")
    lines += ["", "| load | layout | goodput per s | decode clock |", "|---|---|---|---|"]
    for load, layout in sorted({(load, layout) for load, layout, _ in found}):
        by_rate = {per_s: found[load, layout, per_s] for a, b, per_s in found if (a, b) == (load, layout)}
        lines.append(
            f"| {load} | {layout} | {goodput(by_rate, 'on_time'):g} | {goodput(by_rate, 'on_time_decode'):g} |"
        )
    return "\n".join(lines)


def _cell(repeats: Sequence[Figures], name: str, unit: str) -> str:
    factor, form = FORMATS[unit]
    median, least, most = (value * factor for value in middle(repeats, name))
    if math.isnan(median):
        return "-"
    shown = f"{median:{form}}"
    return shown if f"{least:{form}}" == f"{most:{form}}" else f"{shown} ({least:{form}}-{most:{form}})"
