"""The colocated plan: chunked prefill mixed into decode steps on one mixed replica (design §6)."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.phase import Layout
from contracts.plan import Plan, Prediction
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_phased import room_objection, slot_objection
from scheduling.plan_predict import chunked_ttft_s, decode_step_s, meets_targets, prompt_prefill_s


def plan_colocated(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """Among mixed replicas with room: the cheapest predicted to meet both targets, else the best predicted TTFT.

    Returns why none has room otherwise. A candidate with `meets` false is the caller's to take or leave.
    """
    if not mixed:
        return "no mixed replica"
    candidates: list[Candidate] = []
    objections: list[str] = []
    for load in mixed:
        why_not = room_objection(ask, load) or slot_objection(ask, load)
        if why_not is None:
            candidates.append(colocated_candidate(ask, load, config))
        else:
            objections.append(f"{load.replica_id}: {why_not}")
    if not candidates:
        return "; ".join(objections[:4])
    meeting = [candidate for candidate in candidates if candidate.meets]
    if meeting:
        return min(meeting, key=lambda candidate: (candidate.cost_s, candidate.plan.prediction.ttft_s))
    return min(candidates, key=lambda candidate: candidate.plan.prediction.ttft_s)


def colocated_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The colocated plan on one replica, with its prediction and cost."""
    prefill_s = prompt_prefill_s(load.cost, ask.prompt_tokens, config.prefill_chunk)
    ttft_s = chunked_ttft_s(ask, load, prefill_s, config.prefill_chunk)
    tpot_s = decode_step_s(ask, load)
    harm_s = max(0.0, prefill_s - load.tightest_slack_s) if load.tightest_slack_s is not None else 0.0
    plan = Plan(
        layout=Layout.COLOCATED,
        replica_id=load.replica_id,
        prediction=Prediction(ttft_s=ttft_s, switch_wait_s=0.0, tpot_s=tpot_s, harm_s=harm_s),
        reason=f"colocated on {load.replica_id}: predicted TTFT {ttft_s:.3f} s (target {ask.slo.ttft_s:.3f} s) with "
        f"backlog {load.backlog_s:.3f} s beside {load.running} streams, TPOT {tpot_s:.3f} s "
        f"(target {ask.slo.tpot_s:.3f} s)",
    )
    meets = meets_targets(ask, load, ttft_s, tpot_s)
    cost_s = prefill_s * (1 + load.running)
    return Candidate(plan=plan, cost_s=cost_s, prefill_s=prefill_s, meets=meets, idle=load.idle)
