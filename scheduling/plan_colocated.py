"""The colocated plan: chunked prefill mixed into decode steps on one mixed replica (design §6)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from contracts.phase import Layout, Role
from scheduling.admission_rules import Budget
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import chunked_ttft_s, decode_step_s, joining_prefill_s, meets_targets
from scheduling.plan_room import room_objection, slot_objection


def plan_colocated(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """Among mixed replicas with room: the cheapest predicted to meet both targets, else the best predicted TTFT.

    A prompt that cannot meet its targets goes only where no other waits: in the pending queue it can still be placed
    elsewhere, and does not stand in the way of one that can. Such a candidate has `meets` false and is the caller's
    to take or leave. Returns why there is none otherwise. Under a published rule see `_least_loaded`.
    """
    if not mixed:
        return "no mixed replica"
    if config.rule.never_pending and all(load.role is Role.MIXED for load in mixed):
        return _least_loaded(ask, mixed, config)
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
        return min(meeting, key=lambda candidate: candidate.cost_s + _ends_after_s(ask, candidate))
    return min(candidates, key=lambda candidate: candidate.ttft_s)


def _ends_after_s(ask: Ask, candidate: Candidate) -> float:
    """When the request is expected to end there. By the cost to others alone a replica with the prompt in its cache,
    where prefill costs next to nothing, would get every such request however crowded it is."""
    return candidate.ttft_s + candidate.tpot_s * ask.reserve_tokens


def _least_loaded(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The one with the best predicted TTFT, whatever waits there: what `sarathi` and `prefill_priority` came with is a
    balancer before replicas that queue. Only memory, a full waiting room or a closed replica keep a request away."""
    rooms = [(load, room_objection(ask, load)) for load in mixed]
    able = [colocated_candidate(ask, load, config) for load, why_not in rooms if why_not is None]
    if not able:
        return "; ".join([f"{load.replica_id}: {why_not}" for load, why_not in rooms][:4])
    return msgspec.structs.replace(min(able, key=lambda candidate: candidate.ttft_s), settled=True)


def mixed_ttft_s(ask: Ask, load: Load, prefill_s: float, config: ClusterCoreConfig) -> float:
    """TTFT from arrival by the rule that mixed replicas follow. Steps of `sarathi(n)` carry the decodes and fill up."""
    rule = config.rule
    work_s = load.backlog_s + prefill_s
    if rule.budget is Budget.PREFILL_FIRST and load.role is Role.MIXED:
        return ask.waited_s + load.step_left_s + work_s
    if rule.budget is Budget.FIXED and load.role is Role.MIXED:
        tokens = max(1, rule.tokens - load.running)
        chunk_s = tokens * load.cost.a1 + tokens * tokens * load.cost.b1
        steps = math.ceil(work_s / chunk_s) if chunk_s > 0.0 else 1
        return ask.waited_s + load.step_left_s + work_s + steps * load.decode_step_s
    return chunked_ttft_s(ask, load, prefill_s, config.prefill_chunk)


def colocated_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The colocated plan on one replica, with its prediction and cost."""
    prefill_s = joining_prefill_s(ask, load, config.prefill_chunk)
    ttft_s = mixed_ttft_s(ask, load, prefill_s, config)
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
        cached_tokens=ask.cached_on(load.replica_id),
    )
