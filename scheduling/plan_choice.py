"""Choosing among the layouts' candidates for one request (design §6)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.phase import Role
from scheduling.config import ClusterCoreConfig
from scheduling.plan_colocated import colocated_candidate, plan_colocated
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_phased import phased_candidate, plan_phased, room_objection
from scheduling.plan_predict import prompt_prefill_s


def plan_request(ask: Ask, ring: Sequence[Load], mixed: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """Where the request goes now, or one sentence why it has to wait.

    1. Among candidates predicted to meet both targets, the one that costs the fleet least.
    2. Else an idle replica, if there is one.
    3. Else, if no open replica can meet the TTFT target any more, best effort on the least loaded one with room.
    4. Else, in a fleet without alternating replicas, the best predicted TTFT: chunking protects the running streams.
    5. Else it waits: a replica's slack may grow in time.
    """
    phased = plan_phased(ask, ring, config)
    colocated = plan_colocated(ask, mixed, config)
    candidates = [found for found in (phased, colocated) if isinstance(found, Candidate)]
    meeting = [candidate for candidate in candidates if candidate.meets]
    if meeting:
        return min(meeting, key=lambda candidate: candidate.cost_s)
    on_idle = [candidate for candidate in candidates if candidate.idle]
    if on_idle:
        return as_best_effort(min(on_idle, key=lambda candidate: candidate.plan.prediction.ttft_s), ask)
    if is_hopeless(ask, (*ring, *mixed), config):
        found = plan_best_effort(ask, (*ring, *mixed), config)
        if isinstance(found, Candidate) or ring:
            return found
    if not ring and isinstance(colocated, Candidate):
        return colocated
    return "; ".join(found for found in (phased, colocated) if isinstance(found, str))


def is_hopeless(ask: Ask, loads: Sequence[Load], config: ClusterCoreConfig) -> bool:
    """Whether no open replica, were it empty, could still meet the TTFT target (also with nothing waited yet)."""
    return all(
        prompt_prefill_s(load.cost, ask.prompt_tokens, config.prefill_chunk) > ask.ttft_left_s
        for load in loads
        if load.closed is None
    )


def plan_best_effort(ask: Ask, loads: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The least loaded open replica with room, whatever its slack; or why there is none.

    Without this a prompt whose own prefill exceeds the TTFT target would be rejected by every replica for ever
    (EcoServe's Algorithm 1 read literally). So that late prompts do not starve running streams in turn, a replica
    with streams takes the next one only after its share of time for them has passed (`best_effort_share`).
    """
    best: Candidate | None = None
    objections: list[str] = []
    for load in loads:
        why_not = room_objection(ask, load)
        if why_not is None and load.best_effort_wait_s > 0:
            why_not = f"{load.best_effort_wait_s:.3f} s until the next late prompt"
        if why_not is not None:
            objections.append(f"{load.replica_id}: {why_not}")
            continue
        make = phased_candidate if load.role is Role.ALTERNATING else colocated_candidate
        candidate = make(ask, load, config)
        if best is None or candidate.plan.prediction.ttft_s < best.plan.prediction.ttft_s:
            best = candidate
    if best is None:
        return "; ".join(objections[:4]) or "no replica"
    return as_best_effort(best, ask)


def as_best_effort(candidate: Candidate, ask: Ask) -> Candidate:
    """`candidate` with a reason that says which target it gives up."""
    ttft_s = candidate.plan.prediction.ttft_s
    missed = (
        f"predicted TTFT {ttft_s:.3f} s (prompt alone {candidate.prefill_s:.3f} s) over target {ask.slo.ttft_s:.3f} s"
        if ttft_s > ask.slo.ttft_s
        else f"predicted TPOT {candidate.plan.prediction.tpot_s:.3f} s over target {ask.slo.tpot_s:.3f} s"
    )
    reason = f"best effort, {candidate.plan.layout} on {candidate.plan.replica_id}, the least loaded: {missed}"
    plan = msgspec.structs.replace(candidate.plan, reason=reason)
    return msgspec.structs.replace(candidate, plan=plan, best_effort=True)
