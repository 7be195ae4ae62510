"""The tables of RESULT.md and its plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from experiments.dynamic_chunk.loads import AZURE, FIXED, SHAREGPT
from simulator.drawing.attainment import draw_attainment
from simulator.drawing.lines import Line
from simulator.grid import Row

HEAD = (
    "TTFT in s, the other times in ms, P50/P90/P99; an iteration is what a batch takes in its slowest stage. Bubbles: "
    "share of all stage time between two batches that both hold prompt tokens, one of them, neither. Starved: fewer "
    "batches than stages in flight. Within: requests within both targets.",
    "",
    "| policy | TTFT | TPOT | iteration P90/P99 | E2E P50/P99 s | within | busy | P-P | P-D | D-D | starved |"
    " preempted |",
    "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
)
PAPER = (
    "DCP (OSDI'26), AzureConv with the same model and cards, measured on SGLang: against the best fixed chunk, TPOT "
    "-19 % and E2E -18 % (greedy), -35 % and -31 % (predictive); P90 of an iteration 51.7 ms fixed, 29.6 greedy, 21.5 "
    "predictive; its best fixed chunk is 512; ShareGPT -36 % and -24 % (predictive). Goodput: about that of the tuned "
    "fixed chunk. Error of its predictor: 3.3 %. Best here is the fixed chunk with most within the targets, the lower "
    "E2E where two are equal.",
    "",
)


def mean(rows: Sequence[Row], name: str) -> float:
    """Over the seeds."""
    return sum(row.number(name) for row in rows) / len(rows)


def line(policy: str, rows: Sequence[Row]) -> str:
    """One policy."""

    def times(name: str, parts: Sequence[str], unit: float, digits: int) -> str:
        return "/".join(f"{unit * mean(rows, f'{name}{part}'):.{digits}f}" for part in parts)

    bubbles = " | ".join(f"{100 * mean(rows, kind):.1f} %" for kind in ("busy", "p_p", "p_d", "d_d", "starved"))
    quantiles = (".p50", ".p90", ".p99")
    return (
        f"| `{policy}` | {times('usual.ttft_s', quantiles, 1.0, 2)} | {times('usual.tpot_s', quantiles, 1e3, 0)} "
        f"| {times('iteration_', ('p90_s', 'p99_s'), 1e3, 1)} | {times('e2e_s', ('.p50', '.p99'), 1.0, 1)} "
        f"| {100 * mean(rows, 'usual.attained'):.1f} % | {bubbles} | {mean(rows, 'preemptions'):.0f} |"
    )


def best_fixed(by_policy: Mapping[str, Sequence[Row]]) -> str | None:
    """The fixed chunk with most requests within the targets, of two equal ones that with the lower E2E; None without
    any."""
    fixed = [name for size in FIXED if (name := f"sarathi({size})") in by_policy]
    return max(fixed, key=lambda name: (_attained(by_policy[name]), -mean(by_policy[name], "e2e_s.mean")), default=None)


def compared(found: Mapping[str, Mapping[str, Sequence[Row]]]) -> list[str]:
    """Each policy that follows the load against the best fixed chunk."""
    lines = [
        "| data | policy | best fixed | mean TPOT | mean E2E | iteration P90 | bubbles | predictor's error |",
        "| --- | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for data, by_policy in found.items():
        best = best_fixed(by_policy)
        if best is None:
            continue
        base = by_policy[best]
        for policy in ("deadline", "dcp_greedy", "dcp_predictive"):
            if policy in by_policy:
                rows = by_policy[policy]
                lines.append(
                    f"| {data} | `{policy}` | `{best}` | {_change(rows, base, 'usual.tpot_s.mean')} "
                    f"| {_change(rows, base, 'e2e_s.mean')} | {1e3 * mean(base, 'iteration_p90_s'):.1f} -> "
                    f"{1e3 * mean(rows, 'iteration_p90_s'):.1f} ms | {100 * bubbles(base):.1f} -> "
                    f"{100 * bubbles(rows):.1f} % | {100 * mean(rows, 'mape'):.1f} % |"
                )
    return lines


def _attained(rows: Sequence[Row]) -> float:
    return round(mean(rows, "usual.attained"), 3)


def bubbles(rows: Sequence[Row]) -> float:
    """Share of all stage time, those of too few batches apart."""
    return mean(rows, "p_p") + mean(rows, "p_d") + mean(rows, "d_d")


def change(rows: Sequence[Row], base: Sequence[Row], name: str) -> float:
    """As a share of what it was."""
    return mean(rows, name) / mean(base, name) - 1.0


def _change(rows: Sequence[Row], base: Sequence[Row], name: str) -> str:
    return f"{100 * change(rows, base, name):+.0f} %"


def delay_lines(rows: Sequence[Row]) -> list[str]:
    """Who decodes in which batch, under two policies."""
    lines = [
        f"{SHAREGPT}, four stages, one seed. `kept`: streams stay in their batch; `even`: dealt out; `delayed`: DCP's "
        "delay scheduling. The paper says of it: up to 1.4 times the goodput where decoding dominates, mean E2E 4.1 s "
        "less, P99 TPOT 15 % more.",
        "",
        "| rate | policy | batches | TTFT P90 s | TPOT P50/P99 ms | E2E mean/P99 s | within | D-D bubbles |",
        "| ---: | --- | --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    for row in rows:
        lines.append(
            f"| {row.number('rate'):g} | `{row['policy']}` | {row['micro_batches']} "
            f"| {row.number('usual.ttft_s.p90'):.2f} | {1e3 * row.number('usual.tpot_s.p50'):.0f}/"
            f"{1e3 * row.number('usual.tpot_s.p99'):.0f} "
            f"| {row.number('e2e_s.mean'):.1f}/{row.number('e2e_s.p99'):.1f} "
            f"| {100 * row.number('usual.attained'):.1f} % | {100 * row.number('d_d'):.1f} % |"
        )
    return lines


def seeds_told(count: int) -> str:
    """How many runs a figure is of."""
    return "One seed." if count == 1 else f"Means of {count} seeds."


def scan_head(rates: Sequence[float], above: int = 1) -> list[str]:
    """The head of the table of rates; the first tables have `above` seeds."""
    beside = f" here, {above} in the first tables: the same policy at the same rate differs by that" * (above > 1)
    return [
        f"Percent within both targets; one seed{beside}.",
        "",
        f"| targets | policy | {' | '.join(f'{rate:g}/s' for rate in rates)} |",
        "| --- | --- | " + "---: | " * len(rates),
    ]


def scan_lines(policy: str, scale: float, rows: Sequence[Row]) -> list[str]:
    """One policy at each rate."""
    cells = " | ".join(f"{100 * row.number('usual.attained'):.1f}" for row in rows)
    return [f"| times {scale:g} | `{policy}` | {cells} |"]


def drawn(rows: Sequence[Row], scale: float) -> bytes:
    """Attainment against the rate with targets times `scale`."""
    names = dict.fromkeys(str(row["policy"]) for row in rows)
    lines = [
        Line(
            name=name,
            points=tuple(
                (row.number("rate"), row.number("usual.attained"))
                for row in rows
                if row["policy"] == name and row.number("scale") == scale
            ),
        )
        for name in names
    ]
    title = f"{AZURE}, Qwen2.5-32B, four stages, TTFT {2.0 * scale:g} s and TPOT {200 * scale:g} ms"
    return draw_attainment(lines, title=title)
