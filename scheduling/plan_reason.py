"""A candidate as the plan that goes out: its prediction, and one sentence with the numbers that decided."""

from __future__ import annotations

from contracts.phase import Layout
from contracts.plan import Plan, Prediction
from scheduling.config import SlackRule
from scheduling.plan_inputs import Ask, Candidate


def plan_of(ask: Ask, candidate: Candidate, rule: SlackRule) -> Plan:
    """The plan for `ask`. Predicted switch wait is 0: the slack rule admits only what ends within the TTFT target."""
    prediction = Prediction(
        ttft_s=candidate.ttft_s, switch_wait_s=0.0, tpot_s=candidate.tpot_s, harm_s=candidate.harm_s
    )
    return Plan(
        layout=candidate.layout,
        replica_id=candidate.load.replica_id,
        prediction=prediction,
        reason=_reason(ask, candidate, rule),
    )


def _reason(ask: Ask, candidate: Candidate, rule: SlackRule) -> str:
    load = candidate.load
    where = f"{candidate.layout} on {load.replica_id}"
    if candidate.best_effort:
        return f"best effort, {where}, the least loaded with room: {_missed(ask, candidate)}"
    if candidate.layout is Layout.PHASED:
        slack = "no running stream" if load.slack_s is None else f"slack {load.slack_s:.3f} s ({rule})"
        return (
            f"{where}: waited {ask.waited_s:.3f} s + backlog {load.backlog_s:.3f} s + prompt "
            f"{candidate.prefill_s:.3f} s within TTFT {ask.slo.ttft_s:.3f} s, {slack}"
        )
    return (
        f"{where}: predicted TTFT {candidate.ttft_s:.3f} s (target {ask.slo.ttft_s:.3f} s) with backlog "
        f"{load.backlog_s:.3f} s beside {load.running} streams, TPOT {candidate.tpot_s:.3f} s "
        f"(target {ask.slo.tpot_s:.3f} s)"
    )


def _missed(ask: Ask, candidate: Candidate) -> str:
    if candidate.ttft_s > ask.slo.ttft_s:
        return (
            f"predicted TTFT {candidate.ttft_s:.3f} s (prompt alone {candidate.prefill_s:.3f} s, waited "
            f"{ask.waited_s:.3f} s) over target {ask.slo.ttft_s:.3f} s"
        )
    return f"predicted TPOT {candidate.tpot_s:.3f} s over target {ask.slo.tpot_s:.3f} s"
