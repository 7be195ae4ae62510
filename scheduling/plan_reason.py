"""A candidate as the plan that goes out: its prediction, and one sentence with the numbers that decided."""

from __future__ import annotations

from contracts.phase import Layout
from contracts.plan import Plan, Prediction
from scheduling.plan_inputs import Ask, Candidate, PlannedHandoff

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_PHASED = Layout.PHASED


def plan_of(ask: Ask, candidate: Candidate, rule: str) -> Plan:
    """The plan for `ask`."""
    handoff = candidate.handoff
    prediction = Prediction(
        ttft_s=candidate.ttft_s,
        switch_wait_s=candidate.switch_wait_s,
        tpot_s=candidate.tpot_s,
        harm_s=candidate.harm_s,
        transfer_s=0.0 if handoff is None else handoff.transfer_s,
        exposed_s=0.0 if handoff is None else handoff.exposed_s,
        link_bytes_per_s=0.0 if handoff is None else handoff.bytes_per_s,
    )
    return Plan(
        layout=candidate.layout,
        replica_id=candidate.load.replica_id,
        prediction=prediction,
        reason=_reason(ask, candidate, rule),
        prefill_replica_id=None if handoff is None else handoff.giver.replica_id,
        fallback=candidate.fallback,
        fallback_kind=candidate.fallback_kind,
        macro_instance=candidate.load.macro_instance if candidate.layout is _PHASED else None,
        cached_tokens=candidate.cached_tokens,
        handoff_expected_s=0.0 if handoff is None else candidate.ttft_s - ask.waited_s + handoff.exposed_s,
    )


def brief(candidate: Candidate) -> str:
    """A candidate that was not taken, in one clause."""
    if candidate.handoff is not None:
        link = f", {_crossing(candidate.handoff)}"
        unsustainable = "" if candidate.handoff.sustainable else ", not sustainable"
    else:
        link = unsustainable = ""
    return (
        f"{candidate.layout} on {_where(candidate)}: decoding after {candidate.ready_s:.3f} s, TPOT "
        f"{candidate.tpot_s:.3f} s, cost {candidate.cost_s:.3f} s{link}{unsustainable}"
    )


def _reason(ask: Ask, candidate: Candidate, rule: str) -> str:
    if candidate.handoff is not None:
        told = _disaggregated_reason(ask, candidate, candidate.handoff)
    elif candidate.best_effort:
        where = f"{candidate.layout} on {_where(candidate)}"
        told = f"best effort, {where}, the least loaded with room: {_missed(ask, candidate)}"
    else:
        told = _single_reason(ask, candidate, rule)
    if candidate.cached_tokens > 0:
        told += f", {candidate.cached_tokens} of {ask.prompt_tokens} prompt tokens cached"
    return told if candidate.beats is None else f"{told}; beats {candidate.beats}"


def _disaggregated_reason(ask: Ask, candidate: Candidate, handoff: PlannedHandoff) -> str:
    told = (
        f"disaggregated {_where(candidate)}: waited {ask.waited_s:.3f} s + backlog {handoff.giver.backlog_s:.3f} s + "
        f"prefill {candidate.prefill_s:.3f} s, {_crossing(handoff)}: decoding after {candidate.ready_s:.3f} s "
        f"(target {ask.slo.ttft_s:.3f} s), TPOT {candidate.tpot_s:.3f} s (target {ask.slo.tpot_s:.3f} s), "
        f"cost {candidate.cost_s:.3f} s"
    )
    if candidate.best_effort:
        return f"best effort, {told}" + ("" if handoff.sustainable else ", link slower than prefill")
    return told


def _single_reason(ask: Ask, candidate: Candidate, rule: str) -> str:
    load = candidate.load
    where = f"{candidate.layout} on {load.replica_id}"
    if candidate.layout is _PHASED:
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


def _where(candidate: Candidate) -> str:
    giver = "" if candidate.handoff is None else f"{candidate.handoff.giver.replica_id}->"
    return f"{giver}{candidate.load.replica_id}"


def _crossing(handoff: PlannedHandoff) -> str:
    age = "not measured yet" if handoff.link_age_s is None else f"{handoff.link_age_s:.0f} s old"
    return (
        f"{handoff.num_bytes / 1e6:.1f} MB at {handoff.bytes_per_s / 1e6:.1f} MB/s ({age}), "
        f"exposed {handoff.exposed_s:.3f} s"
    )


def _missed(ask: Ask, candidate: Candidate) -> str:
    if candidate.ttft_s > ask.slo.ttft_s:
        return (
            f"predicted TTFT {candidate.ttft_s:.3f} s (prompt alone {candidate.prefill_s:.3f} s, waited "
            f"{ask.waited_s:.3f} s) over target {ask.slo.ttft_s:.3f} s"
        )
    return f"predicted TPOT {candidate.tpot_s:.3f} s over target {ask.slo.tpot_s:.3f} s"
