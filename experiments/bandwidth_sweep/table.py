"""The sweep as text: one block for each rate, the best layout marked, and the verdict in words."""

from __future__ import annotations

import math
from collections.abc import Sequence

from experiments.bandwidth_sweep.crossover import ALLOWED, Verdict
from experiments.bandwidth_sweep.options import AUTO, MODES, Options
from experiments.bandwidth_sweep.summary import Percentiles, Summary

HEAD = (
    f"{'Mbit/s':>7} {'layout':14} {'attained':>8} {'e2e':>5} {'good/s':>6} {'ok':>7}"
    f" {'TTFT':>14} {'switch wait':>14} {'TTFT+switch':>14} {'TPOT':>11} {'TPOT*':>11}"
    f" {'KV MB':>7} {'wire MB':>7} {'link est':>8} {'handed':>6} {'hidden':>11} {'exposed ms':>11}"
)


def table(summaries: Sequence[Summary], options: Options) -> str:
    """All points, ordered by rate."""
    lines = [_legend(options), "", HEAD]
    for rate in options.mbit_per_s:
        block = [
            summary for mode in MODES for summary in summaries if (summary.mode, summary.mbit_per_s) == (mode, rate)
        ]
        best = max((summary.attained for summary in block if summary.mode != AUTO), default=0.0)
        lines += [_row(summary, summary.attained >= best) for summary in block]
        lines.append("")
    return "\n".join(lines)


def verdict_text(verdict: Verdict, options: Options) -> str:
    """What the sweep says, criteria first."""
    low, high = options.mbit_per_s[0], options.mbit_per_s[-1]

    def rate(value: float | None) -> str:
        return f"not between {low:g} and {high:g} Mbit/s" if value is None else f"{value:.0f} Mbit/s"

    worst, at, steps = verdict.worst_auto, verdict.worst_at, verdict.steps_off
    lines = [
        f"crossover measured:  {rate(verdict.crossover)} (from there on hand-offs attain as much as the best without)",
        "crossover predicted: "
        + ("none" if verdict.predicted is None else f"{verdict.predicted:.0f} Mbit/s")
        + " (scheduling.link_math with the measured step cost)",
        f"auto hands over more than half of the requests: {rate(verdict.switch)}",
    ]
    if worst is not None and at is not None:
        lines.append(
            f"{_met(verdict.auto_holds)}: auto never worse than the best forced layout by more than {ALLOWED:.0%}"
            f" (worst: {worst:.1%} of its attainment, at {at:g} Mbit/s)"
        )
    if steps is None:
        lines.append("NOT SHOWN: auto switches within one step of the crossover (one of the two lies outside)")
    else:
        lines.append(
            f"{_met(verdict.switch_holds)}: auto switches within one step of the crossover ({steps:.2f} steps)"
        )
    return "\n".join(lines)


def _met(holds: bool | None) -> str:
    return "MET" if holds else "NOT MET"


def _legend(options: Options) -> str:
    workload, slo = options.workload, options.slo
    return (
        f"{options.engine} engine, {options.replicas} replicas in each layout,"
        f" {options.kv_layout.bytes_per_token:,} bytes of KV a token; {workload.requests} requests at"
        f" {workload.per_s:g}/s, prompts of {_span(workload.prompt_tokens)}, outputs of {_span(workload.output_tokens)}"
        f" tokens, seed {workload.seed}.\nTargets: TTFT {slo.ttft_s:g} s, TPOT {slo.tpot_s * 1e3:g} ms. 'attained':"
        " EcoServe's clock (TTFT + switch wait, TPOT* after it), 'e2e': end to end (TTFT, TPOT from the first token).\n"
        "Times are P50/P90/P99 in ms; 'never' reaches requests that were given up. 'hidden' and 'exposed ms' (mean):"
        " measured/as planned.\n'link est': Mbit/s that the fleet took its links for. *: best forced layout."
    )


def _span(bounds: tuple[int, int]) -> str:
    return f"{bounds[0]}-{bounds[1]}"


def _row(summary: Summary, best: bool) -> str:
    mark = "*" if best and summary.mode != AUTO else " "
    return (
        f"{summary.mbit_per_s:7g} {summary.mode + mark:14} {summary.attained:8.1%} {summary.attained_end_to_end:5.0%}"
        f" {summary.goodput_per_s:6.2f} {summary.answered:3d}/{summary.requests:<3d}"
        f" {_ms(summary.ttft):>14} {_ms(summary.switch_wait):>14} {_ms(summary.ready):>14}"
        f" {_ms(summary.tpot):>11} {_ms(summary.decode_tpot):>11}"
        f" {summary.kv_bytes / 1e6:7.1f} {summary.wire_bytes / 1e6:7.1f} {_rate(summary.link_mbit_per_s):>8}"
        f" {summary.handed_over:6.0%}"
        f" {_pair(summary.hidden_share, summary.planned_hidden_share, 100, '%'):>11}"
        f" {_pair(summary.exposed_s, summary.planned_exposed_s, 1e3, ''):>11}"
    )


def _ms(times: Percentiles) -> str:
    return "/".join("never" if math.isinf(t) else f"{t * 1e3:.0f}" for t in (times.p50, times.p90, times.p99))


def _rate(mbit_per_s: float | None) -> str:
    return "-" if mbit_per_s is None else f"{mbit_per_s:.0f}"


def _pair(measured: float | None, planned: float | None, factor: float, unit: str) -> str:
    if measured is None or planned is None:
        return "-"
    return f"{measured * factor:.0f}{unit}/{planned * factor:.0f}{unit}"
