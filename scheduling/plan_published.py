"""EcoServe's own rules of placement (Du et al., OSDI'26), reproduced to be compared with. They keep their traps.

`ecoserve_paper`, Algorithm 1: from the replica whose turn it is on, the first whose window with this prompt stays
within the TTFT target, whose mean slack covers that window, and which has the memory. The whole target is compared,
however long the request has waited; a window's members are counted, done or not, until the replica is back in decode
(reading "last phase switch" as the replica's own, not the pointer's). Mean slack lets a tight stream pay.

`ecoserve_artifact`, what the released code does instead: it goes by the greatest slack, frozen when the turn began, and
never lets anything wait: the replica whose turn it is or the next one, unchecked, takes every request. Window and slack
go by the turn, so that streams that begin to decode within a turn are never looked at.

`fixed_interval(f)`, the paper's ablation: the turn passes to the next replica each f TTFT targets.

Ours are only that a closed replica, or one whose waiting room is full, is passed over (every queue here has a bound).
Their prompts are prefilled as they come (`AdmissionRule.greedy`). The turn is not given back when a request ends.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec

from scheduling.admission_rules import Walk
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import prefill_on_s
from scheduling.plan_room import phased_candidate, prompt_fits, room_objection

OBJECTIONS_SHOWN = 4

Rule = Callable[[Ask, Sequence[Load], ClusterCoreConfig], Candidate | str]


def plan_algorithm_1(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The first of `ring` that passes, or why none does."""
    objections = []
    for load in ring:
        why_not = room_objection(ask, load) or _algorithm_1_objection(ask, load, config)
        if why_not is None:
            return _settled(ask, load, config)
        objections.append(f"{load.replica_id}: {why_not}")
    return "; ".join(objections[:OBJECTIONS_SHOWN])


def _algorithm_1_objection(ask: Ask, load: Load, config: ClusterCoreConfig) -> str | None:
    window_s = load.window_s + prefill_on_s(ask, load, config.prefill_chunk)
    if window_s > ask.slo.ttft_s:
        return f"window {window_s:.3f} s over TTFT target {ask.slo.ttft_s:.3f} s"
    if load.slack_s is not None and load.slack_s < window_s:
        return f"window {window_s:.3f} s over mean slack {load.slack_s:.3f} s"
    return None


def plan_artifact(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The first of `ring` that is open, or the next that is."""
    able, why = _able(ask, ring)
    if not able:
        return why
    stays = len(able) == 1 or artifact_stays(ask, able[0], able[1], len(ring), config)
    return _settled(ask, able[0] if stays else able[1], config)


def artifact_stays(ask: Ask, current: Load, following: Load, num_replicas: int, config: ClusterCoreConfig) -> bool:
    """Whether the turn stays with `current` for this request, or passes to `following`."""
    turn, ttft_s = current.turn, ask.slo.ttft_s
    total_s = prefill_on_s(ask, current, config.prefill_chunk)
    blocks = (ask.prompt_tokens + current.block_size) // current.block_size
    members, free_blocks = 0, current.free_blocks
    saved_s = current.slack_s
    if turn is not None:
        total_s, blocks = total_s + turn.prefill_s, blocks + turn.blocks
        members, free_blocks, saved_s = turn.members, turn.free_blocks, turn.slack_s
    short = blocks > free_blocks
    room_s = min(ttft_s if members else math.inf, math.inf if saved_s is None else saved_s)
    if room_s > total_s and not short:
        return True
    if total_s > ttft_s or short or following.idle:
        return False
    ready_from_s = ttft_s * (num_replicas - 1) / num_replicas
    return following.slack_s is None or following.slack_s < ready_from_s


def plan_fixed_interval(ask: Ask, ring: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The first of `ring` that is open, or the next that is when its turn has lasted long enough."""
    able, why = _able(ask, ring)
    if not able:
        return why
    turn = able[0].turn
    over = turn is not None and ask.now - turn.began_at >= config.rule.interval * ask.slo.ttft_s
    return _settled(ask, able[1] if over and len(able) > 1 else able[0], config)


def _able(ask: Ask, ring: Sequence[Load]) -> tuple[list[Load], str]:
    """Those that can take the request at all, and why others cannot."""
    able, objections = [], []
    for load in ring:
        why_not = load.closed
        if why_not is None and load.waiting + ask.num_sequences > load.max_waiting:
            why_not = f"{load.waiting} waiting of {load.max_waiting}"
        if why_not is None and not prompt_fits(ask, load):
            why_not = "its cache is too small for the prompt"
        if why_not is None:
            able.append(load)
        else:
            objections.append(f"{load.replica_id}: {why_not}")
    return able, "; ".join(objections[:OBJECTIONS_SHOWN])


def _settled(ask: Ask, load: Load, config: ClusterCoreConfig) -> Candidate:
    return msgspec.structs.replace(phased_candidate(ask, load, config), settled=True)


PUBLISHED: dict[Walk, Rule] = {
    Walk.ALGORITHM_1: plan_algorithm_1,
    Walk.ARTIFACT: plan_artifact,
    Walk.FIXED_INTERVAL: plan_fixed_interval,
}
"""The walks of this module."""
