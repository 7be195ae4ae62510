"""The colocated plan: chunked prefill mixed into decode steps on one mixed replica (design §6)."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.phase import Layout
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import chunked_ttft_s, decode_step_s, meets_targets, prompt_prefill_s
from scheduling.plan_room import room_objection, slot_objection


def plan_colocated(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """Among mixed replicas with room: the cheapest predicted to meet both targets, else the best predicted TTFT.

    A prompt that cannot meet its targets goes only where no other waits: in the pending queue it can still be placed
    elsewhere, and does not stand in the way of one that can. Such a candidate has `meets` false and is the caller's
    to take or leave. Returns why there is none otherwise.
    """
    if not mixed:
        return "no mixed replica"
    candidates: list[Candidate] = []
    objections: list[str] = []
    for load in mixed:
        why_not = room_objection(ask, load) or slot_objection(ask, load)
        candidate = colocated_candidate(ask, load, config) if why_not is None else None
        if candidate is not None and (candidate.meets or load.waiting == 0):
            candidates.append(candidate)
        else:
            why_not = why_not or f"{load.waiting} prompts wait"
            objections.append(f"{load.replica_id}: {why_not}")
    if not candidates:
        return "; ".join(objections[:4])
    meeting = [candidate for candidate in candidates if candidate.meets]
    if meeting:
        return min(meeting, key=lambda candidate: (candidate.cost_s, candidate.ttft_s))
    return min(candidates, key=lambda candidate: candidate.ttft_s)


def colocated_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The colocated plan on one replica, with its prediction and cost."""
    prefill_s = prompt_prefill_s(load.cost, ask.prompt_tokens, config.prefill_chunk)
    ttft_s = chunked_ttft_s(ask, load, prefill_s, config.prefill_chunk)
    tpot_s = decode_step_s(ask, load)
    tightest_s = load.tightest_slack_s
    return Candidate(
        layout=Layout.COLOCATED,
        load=load,
        prefill_s=prefill_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        harm_s=0.0 if tightest_s is None else max(0.0, -tightest_s),
        cost_s=prefill_s * (1 + load.running),
        meets=meets_targets(ask, load, ttft_s, tpot_s),
    )
