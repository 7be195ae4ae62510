"""A simulated run's report as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.report import Clocks, Report
from simulator.statistics import Summary


def table_of(report: Report) -> str:
    """The report in words and columns; the JSON has all of it."""
    return "\n".join((*_requests(report), "", *_latencies(report), "", *_fleet(report)))


def _requests(report: Report) -> Iterator[str]:
    refused = ", ".join(f"{count} with {status}" for status, count in report.refused.items()) or "none"
    layouts = ", ".join(f"{count} {name}" for name, count in report.layouts.items()) or "none"
    yield f"{report.arrived} requests in {report.duration_s:.1f} s ({report.rate:.3g}/s), {report.finished} answered"
    yield f"refused: {refused}; placed: {layouts}; placed again: {report.placed_again}"
    yield f"{report.throughput:.3g} requests/s, {report.output_tokens_per_s:.4g} output tokens/s"
    yield f"attained: {report.usual.attained:.1%} (EcoServe's clock {report.ecoserve.attained:.1%}){_met(report)}"
    for entry in report.classes if len(report.classes) > 1 else ():
        yield f"  {entry.name}: {entry.arrived} requests, {entry.usual.attained:.1%} attained"


def _met(report: Report) -> str:
    """Which attainment quantiles were met."""
    met = ", ".join(name.upper() for name in ("p50", "p90", "p99") if getattr(report.usual, f"met_{name}"))
    return f": {met or 'no quantile'} met; {report.attained_per_s:.3g} requests/s within both targets"


def _latencies(report: Report) -> Iterator[str]:
    yield f"{'':24s}{'P50':>10s}{'P90':>10s}{'P99':>10s}{'most':>10s}   (ms)"
    yield from _clock("", report.usual)
    yield from _clock(", EcoServe's clock", report.ecoserve)
    yield _row("switch wait", report.switch_wait_s)
    yield _row("ITL", report.itl_s)
    yield _row("ITL, EcoServe's clock", report.itl_ecoserve_s)
    yield _row("queue at the replica", report.queue_s)
    if report.handed_over:
        yield _row("exposed transfer", report.exposed_s)
    yield f"longest wait {report.longest_wait_s:.3g} s"
    yield f"TTFT predicted within {report.prediction_error.p50:.0%} (median; mean {report.prediction_bias:+.0%})"


def _clock(name: str, clocks: Clocks) -> Iterator[str]:
    yield _row(f"TTFT{name}", clocks.ttft_s)
    yield _row(f"TPOT{name}", clocks.tpot_s)


def _row(name: str, values: Summary) -> str:
    cells = "".join(f"{1e3 * value:10.1f}" for value in (values.p50, values.p90, values.p99, values.most))
    return f"{name:24s}{cells}"


def _fleet(report: Report) -> Iterator[str]:
    yield (
        f"busy {report.utilisation:.1%}; hand-offs {report.handed_over} ({report.handoffs_failed} failed),"
        f" {report.kv_bytes / 1e9:.3g} GB; fairness {report.jain_tokens:.3f} (Jain, tokens)"
    )
    yield f"below {report.recovery_below:.0%} attainment for {report.recovery_s:.3g} s at the longest"
    for replica in report.replicas[:64]:
        yield (
            f"  {replica.replica_id:18s}{replica.role:12s}{replica.busy:7.1%} busy{replica.steps:9d} steps"
            f"{replica.prompt_tokens:10d} in{replica.output_tokens:10d} out"
        )
    for decision in report.fleet_decisions[-16:]:
        yield f"  {decision.at_s:8.1f} s  {decision.kind}: {decision.reason}"
