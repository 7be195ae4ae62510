"""A simulated run's report as lines that fit a terminal."""

from __future__ import annotations

from collections.abc import Iterator

from cli.described import described, targets_of
from cli.terms import LATENCIES
from contracts.plan import FleetDecision
from simulator.report import Clocks, Report
from simulator.scenario import Scenario
from simulator.statistics import Summary

_SHARES = {"met_p50": "50", "met_p90": "90", "met_p99": "99"}
_PROPOSED = {
    "propose_more": "one more replica would help: first tokens are late, or decode steps too slow",
    "propose_fewer": "one replica could be spared: streams run further ahead of their TPOT than prefill needs",
}


def table_of(report: Report, scenario: Scenario, cost_file: str | None = None) -> str:
    """The report in words and columns; the JSON has all of it. Latencies only where there are any. `cost_file`: where
    the costs of a step were read from, if they were."""
    lines = [*described(scenario, cost_file), "", *_requests(report, scenario)]
    if report.finished:
        lines += ["", *LATENCIES, "", *_latencies(report)]
    return "\n".join((*lines, "", *_fleet(report)))


def _requests(report: Report, scenario: Scenario) -> Iterator[str]:
    refused = ", ".join(f"{count} with {status}" for status, count in report.refused.items()) or "none"
    layouts = ", ".join(f"{count} {name}" for name, count in report.layouts.items()) or "none"
    warmup = f"; those of the first {scenario.warmup_s:g} s are not counted" if scenario.warmup_s else ""
    yield f"{report.arrived} requests arrived ({report.rate:.3g}/s), {report.finished} were answered{warmup}"
    yield f"refused: {refused}; placed: {layouts}; placed again: {report.placed_again}"
    for refusal in report.refusals[:4]:
        yield f"  {refusal.count} with {refusal.status}, such as: {refusal.reason}"
    if not report.finished:
        return
    counted_s = report.finished / report.throughput
    yield (
        f"answered {report.throughput:.3g}/s over the {counted_s:.1f} s until the last answer;"
        f" {report.output_tokens_per_s:.4g} output tokens/s"
    )
    yield (
        f"attained: {report.usual.attained:.1%} of requests, {report.attained_per_s:.3g}/s"
        f" (by EcoServe's clock {report.ecoserve.attained:.1%})"
    )
    yield f"{_met(report.usual)} of requests within both targets ({targets_of(scenario)})"
    for entry in report.classes if len(report.classes) > 1 else ():
        yield f"  {entry.name}: {entry.arrived} requests, {entry.usual.attained:.1%} attained"


def _met(clocks: Clocks) -> str:
    """Which attainment quantiles were met."""
    met = ", ".join(share for name, share in _SHARES.items() if getattr(clocks, name))
    return f"at least {met} %" if met else "less than 50 %"


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
    yield f"longest wait for a first token{', or a refusal' if report.refused else ''}: {report.longest_wait_s:.3g} s"
    bias = report.prediction_bias
    if report.prediction_error.count:
        yield (
            f"the router's TTFT predictions were off by {report.prediction_error.p50:.0%} at the median, in the mean"
            f" {abs(bias):.0%} too {'high' if bias > 0.0 else 'low'}"
        )


def _clock(name: str, clocks: Clocks) -> Iterator[str]:
    yield _row(f"TTFT{name}", clocks.ttft_s)
    yield _row(f"TPOT{name}", clocks.tpot_s)


def _row(name: str, values: Summary) -> str:
    cells = "".join(f"{1e3 * value:10.1f}" for value in (values.p50, values.p90, values.p99, values.most))
    return f"{name:24s}{cells}"


def _fleet(report: Report) -> Iterator[str]:
    yield f"hand-offs {report.handed_over} ({report.handoffs_failed} failed); {_carried(report)}"
    yield f"busy {report.utilisation:.1%}; fairness among keys {report.jain_tokens:.3f} (Jain's index, tokens)"
    if report.finished:
        yield (
            f"longest stretch of arrivals with under {100.0 * report.recovery_below:g} % attained:"
            f" {report.recovery_s:.3g} s"
        )
    for replica in report.replicas[:64]:
        yield (
            f"  {replica.replica_id:18s}{replica.role:12s}{replica.busy:7.1%} busy{replica.steps:9d} steps"
            f"{replica.prompt_tokens:10d} in{replica.output_tokens:10d} out"
        )
    for decision in report.fleet_decisions[-16:]:
        if report.finished or decision.kind not in _PROPOSED:
            yield f"  {decision.at_s:8.1f} s  {_decided(decision)}"


def _carried(report: Report) -> str:
    """What the links carried."""
    handed_over = sum(replica.kv_bytes_in for replica in report.replicas)
    told = f"links carried {report.kv_bytes / 1e9:.3g} GB"
    if report.handed_over or report.handoffs_failed:
        return f"{told}, {handed_over / 1e9:.3g} GB of it KV of whole hand-offs, the rest probes and what failed"
    return f"{told}, all of it probes of their bandwidth" if report.kv_bytes else "links carried nothing"


def _decided(decision: FleetDecision) -> str:
    """For people; a proposal's own figures are in the JSON."""
    if decision.kind not in _PROPOSED:
        return f"{decision.kind.replace('_', ' ')}: {decision.reason}"
    least = f" ({decision.replica_id})" if decision.replica_id else ""
    return f"{_PROPOSED[decision.kind]}{least}"
