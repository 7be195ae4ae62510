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
    on_idle = [candidate for candidate in candidates if candidate.load.idle]
    if on_idle:
        return as_best_effort(min(on_idle, key=lambda candidate: candidate.ttft_s))
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
    (EcoServe's Algorithm 1 read literally).
    """
    best: Candidate | None = None
    objections: list[str] = []
    for load in loads:
        why_not = room_objection(ask, load)
        if why_not is None:
            why_not = _late_objection(ask, load, config)
        if why_not is not None:
            objections.append(f"{load.replica_id}: {why_not}")
            continue
        make = phased_candidate if load.role is Role.ALTERNATING else colocated_candidate
        candidate = make(ask, load, config)
        if best is None or candidate.ttft_s < best.ttft_s:
            best = candidate
    if best is None:
        return "; ".join(objections[:4]) or "no replica"
    return as_best_effort(best)


def _late_objection(ask: Ask, load: Load, config: ClusterCoreConfig) -> str | None:
    """Why a late prompt should not go to `load` yet, or None.

    It goes where no other prompt waits, within the slack of the running streams, while no punctual prompt needs
    either. In overload that may be never; so late prompts are forced upon a replica all the same, for at most
    `forced_share` of its time. More would eat the slack by which others are on time: without that bound nobody is.
    """
    if load.forced_wait_s <= 0:
        return None
    if ask.yields or load.waiting > 0:
        return f"punctual prompts first, next late one in {load.forced_wait_s:.3f} s"
    if load.role is Role.MIXED or load.slack_s is None:
        return None
    window_s = load.backlog_s + prompt_prefill_s(load.cost, ask.prompt_tokens, config.prefill_chunk)
    if window_s <= load.slack_s:
        return None
    return f"window {window_s:.3f} s over slack {load.slack_s:.3f} s, next late prompt in {load.forced_wait_s:.3f} s"


def as_best_effort(candidate: Candidate) -> Candidate:
    """`candidate`, taken although it does not meet the targets."""
    return msgspec.structs.replace(candidate, best_effort=True)
