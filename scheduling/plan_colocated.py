"""The colocated plan: chunked prefill mixed into decode steps on one mixed replica."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from contracts.phase import Layout, Role
from scheduling.admission_rules import AdmissionRule, Budget
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import before_s, chunked_ttft_s, decode_step_s, joining_prefill_s, meets_targets
from scheduling.plan_room import place_objection, room_objection

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_MIXED = Role.MIXED
_DEADLINE = Budget.DEADLINE
REASONS_SHOWN = 4


def plan_colocated(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """Among mixed replicas with room: the cheapest predicted to meet both targets, else the best predicted TTFT.

    A prompt that cannot meet its targets goes only where no other waits: in the pending queue it can still be placed
    elsewhere, and does not stand in the way of one that can. Such a candidate has `meets` false and is the caller's
    to take or leave. Returns why there is none otherwise. Under a published rule see `_least_loaded`.
    """
    if not mixed:
        return "no mixed replica"
    rule = config.rule
    if rule.never_pending and all(load.role is _MIXED for load in mixed):
        return _least_loaded(ask, mixed, config)
    cheapest: Load | None = None
    soonest: Load | None = None
    least_s = least_ttft_s = math.inf
    objections: list[str] = []
    for load in mixed:
        why_not = place_objection(ask, load)
        if why_not is None:
            prefill_s = joining_prefill_s(ask, load, config.prefill_chunk)
            tpot_s = decode_step_s(ask, load)
            # When the request is expected to end there counts too. By the cost to others alone a replica with the
            # prompt in its cache, where prefill costs next to nothing, would get every such request however crowded.
            cost_s, decodes_s = prefill_s * (1 + load.running), tpot_s * ask.reserve_tokens
            if cost_s + (ask.waited_s + (before_s(ask, load) + prefill_s) + decodes_s) >= least_s:
                continue  # even undisturbed it would not be cheaper
            ttft_s = mixed_ttft_s(ask, load, prefill_s, rule, config)
            if _is_on_time(ask, load, prefill_s, ttft_s, tpot_s, config):
                if cost_s + (ttft_s + decodes_s) < least_s:
                    cheapest, least_s = load, cost_s + (ttft_s + decodes_s)
                continue
            if load.waiting == 0:
                if soonest is None or ttft_s < least_ttft_s:
                    soonest, least_ttft_s = load, ttft_s
                continue
        if len(objections) < REASONS_SHOWN:
            objections.append(f"{load.replica_id}: {why_not or f'{load.waiting} prompts wait'}")
    best = cheapest or soonest
    return "; ".join(objections) if best is None else colocated_candidate(ask, best, config)


def _least_loaded(ask: Ask, mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The one with the best predicted TTFT, whatever waits there: what `sarathi` and `prefill_priority` came with is a
    balancer before replicas that queue. Only memory, a full waiting room or a closed replica keep a request away."""
    rule = config.rule
    able = [load for load in mixed if room_objection(ask, load) is None]
    if not able:
        return "; ".join([f"{load.replica_id}: {room_objection(ask, load)}" for load in mixed[:REASONS_SHOWN]])
    best = min(able, key=lambda load: _ttft_s(ask, load, rule, config))
    return msgspec.structs.replace(colocated_candidate(ask, best, config), settled=True)


def _ttft_s(ask: Ask, load: Load, rule: AdmissionRule, config: ClusterCoreConfig) -> float:
    return mixed_ttft_s(ask, load, joining_prefill_s(ask, load, config.prefill_chunk), rule, config)


def _is_on_time(
    ask: Ask, load: Load, prefill_s: float, ttft_s: float, tpot_s: float, config: ClusterCoreConfig
) -> bool:
    """Whether both targets are met, by what is expected and, where a request can wait for another replica, by what can
    be counted on too: that is never sooner."""
    if not meets_targets(ask, load, ttft_s, tpot_s):
        return False
    rule = config.rule
    return rule.never_pending or meets_targets(
        ask, load, mixed_ttft_s(ask, load, prefill_s, rule, config, cautious=True), tpot_s
    )


def mixed_ttft_s(
    ask: Ask, load: Load, prefill_s: float, rule: AdmissionRule, config: ClusterCoreConfig, *, cautious: bool = False
) -> float:
    """TTFT from arrival by the rule that mixed replicas follow. Steps of `sarathi(n)` carry the decodes and fill up.
    `cautious`: what to count on rather than what to expect."""
    if rule.budget is _DEADLINE or load.role is not _MIXED:
        return chunked_ttft_s(ask, load, prefill_s, config.prefill_chunk, cautious=cautious)
    work_s = load.backlog_s + prefill_s
    if rule.budget is Budget.PREFILL_FIRST:
        return ask.waited_s + load.step_left_s + work_s
    if rule.budget is Budget.FIXED:
        tokens = max(1, rule.tokens - load.running)
        chunk_s = tokens * load.cost.a1 + tokens * tokens * load.cost.b1
        steps = math.ceil(work_s / chunk_s) if chunk_s > 0.0 else 1
        return ask.waited_s + load.step_left_s + work_s + steps * load.decode_step_s
    return chunked_ttft_s(ask, load, prefill_s, config.prefill_chunk, cautious=cautious)


def colocated_candidate(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    """The colocated plan on one replica, with its prediction and cost."""
    prefill_s = joining_prefill_s(ask, load, config.prefill_chunk)
    ttft_s = mixed_ttft_s(ask, load, prefill_s, config.rule, config)
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
        meets=_is_on_time(ask, load, prefill_s, ttft_s, tpot_s, config),
        cached_tokens=ask.cached_on(load.replica_id),
    )
