"""Scans as lines of Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from experiments.ecoserve.scan import SHARES, Found

USUAL, ECOSERVE = 1, 2
HEAD = (
    "| system | P50 | P90 | P99 | dips at P90 | TTFT P90 | TPOT P90 | TTFT error |",
    "| --- | ---: | ---: | ---: | --- | ---: | ---: | ---: |",
)
LEGEND = (
    "Goodput in req/s, usual clock / EcoServe's clock (the switch wait belongs to TTFT, TPOT begins after it). "
    "Latencies and the median error of predicted TTFT at the highest scanned rate that holds at P90 by the usual clock."
)


def goodput_line(found: Found) -> str:
    """One system."""
    cells = " | ".join(f"{rate(found, share, USUAL)} / {rate(found, share, ECOSERVE)}" for share in SHARES)
    dips = sorted({*found.dips(0.9, USUAL), *found.dips(0.9, ECOSERVE)})
    shown = ", ".join(f"{one:.3g}" for one in dips) or "none"
    holding = [row for point, row in zip(found.points, found.figures, strict=True) if point[USUAL] >= SHARES[1]]
    last = "- | - | -"
    if holding:
        ttft_s, tpot_s = holding[-1].number("usual.ttft_s.p90"), holding[-1].number("usual.tpot_s.p90")
        error = holding[-1].number("prediction_error.p50")
        last = f"{ttft_s:.2f} s | {tpot_s * 1e3:.0f} ms | {100 * error:.0f} %"
    which = f"{found.rule[3:]}P" if found.rule.startswith("pd:") else found.rule.removeprefix("sarathi")
    name = found.system + (f" ({which.strip('()')})" if found.rule.startswith(("pd:", "sarathi")) else "")
    return f"| {name} | {cells} | {shown} | {last} |"


def rate(found: Found, share: float, clock: int) -> str:
    """A goodput as it is printed."""
    value, open_end = found.goodput(share, clock)
    return f"{'>=' if open_end else ''}{value:.3g}"


def gain(ours: Found, other: Found, share: float, clock: int) -> float | None:
    """Ours over the other's; None where one has none."""
    mine, theirs = ours.goodput(share, clock)[0], other.goodput(share, clock)[0]
    return mine / theirs if mine and theirs else None


def mean(values: Sequence[float | None]) -> str:
    """Of those that are there, and how many."""
    known = [value for value in values if value is not None]
    return f"{sum(known) / len(known):.2f} ({len(known)})" if known else "-"


def change(before: Found, after: Found, share: float, clock: int) -> str:
    """Two goodputs and the change from one to the other."""
    old, new = before.goodput(share, clock)[0], after.goodput(share, clock)[0]
    percent = f" ({100 * (new / old - 1):+.0f} %)" if old else ""
    return f"{rate(before, share, clock)} to {rate(after, share, clock)}{percent}"
