"""What a proposal about the fleet's size means for the workloads that hold it: which one, to what size, who goes. Pure.

Never outside of a pool's bounds, never soon after another change (whoever made it), never while an earlier one is
under way, and never against an autoscaler: a workload that one claims is left alone, and it is said why.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from contracts.cluster_io import ProposeReplicas
from contracts.discovery import ReplicaStanding
from contracts.phase import Role
from k8s.config import PoolConfig, ScalingConfig
from k8s.objects import Autoscaler

SCALED_ROLE = Role.ALTERNATING
"""Sizes are proposed for macro instances (`scheduling.macro_scaling`)."""


class PoolState(msgspec.Struct, frozen=True, kw_only=True):
    """A workload as it was found. `wanted` pods are asked for, `present` are there; `claimed_by` names an autoscaler.
    `changed_at`: when its size was last seen to change. `uid` and `version` are the workload's own."""

    config: PoolConfig
    wanted: int
    present: int
    uid: str
    version: str
    claimed_by: str | None
    changed_at: float


class Grow(msgspec.Struct, frozen=True):
    """Ask for `to` pods."""

    pool: PoolState
    to: int


class Shrink(msgspec.Struct, frozen=True):
    """Ask for `to` pods once `victim` has nothing left to do (None: whoever it is, it is not in the fleet)."""

    pool: PoolState
    to: int
    victim: str | None


class Refused(msgspec.Struct, frozen=True):
    """Nothing is done. `loud`: somebody has to know, for it will not pass by itself."""

    reason: str
    pool: PoolState | None = None
    loud: bool = False


Choice = Grow | Shrink | Refused


def choose(
    proposal: ProposeReplicas,
    pools: Sequence[PoolState],
    standings: Mapping[str, ReplicaStanding],
    config: ScalingConfig,
    now: float,
) -> Choice:
    """One pool, one step: what is still wanted afterwards will be proposed again."""
    pools = _meant(proposal, pools, standings)
    refusals: list[Refused] = []
    for pool in sorted(pools, key=lambda pool: _order(pool, proposal.change)):
        refusal = _why_not(pool, proposal.change, config, now)
        if refusal is None:
            if proposal.change > 0:
                return Grow(pool, pool.wanted + 1)
            return Shrink(pool, pool.wanted - 1, victim_of(pool, standings, proposal.spared))
        refusals.append(refusal)
    if not refusals:
        return Refused("no pool is there to be scaled")
    return next((refusal for refusal in refusals if refusal.loud), refusals[0])


def claims(autoscalers: Iterable[Autoscaler]) -> dict[tuple[str, str], str]:
    """Name of the autoscaler by kind and name of the workload that it scales."""
    found = {}
    for autoscaler in autoscalers:
        target = autoscaler.spec.scale_target_ref
        found[target.kind, target.name] = autoscaler.metadata.name
    return found


def belongs(replica_id: str, pool: PoolConfig) -> bool:
    """Whether a pod of this name is the pool's: `name-0` of a StatefulSet, `name-hash-random` of a Deployment."""
    tail = r"\d+" if pool.kind == "StatefulSet" else r"[a-z0-9]+-[a-z0-9]{5}"
    return re.fullmatch(rf"{re.escape(pool.workload)}-{tail}", replica_id) is not None


def victim_of(pool: PoolState, standings: Mapping[str, ReplicaStanding], spared: str | None) -> str | None:
    """Who goes when the pool shrinks by one: a StatefulSet always gives up its last pod; of a Deployment the one that
    can be spared best, or that has least to finish."""
    if pool.config.kind == "StatefulSet":
        last = f"{pool.config.workload}-{pool.wanted - 1}"
        return last if last in standings else None
    members = [standing for standing in standings.values() if belongs(standing.replica_id, pool.config)]
    if spared is not None and any(member.replica_id == spared for member in members):
        return spared
    return min(members, key=lambda member: (member.sequences, member.replica_id)).replica_id if members else None


def is_empty(victim: str | None, standings: Mapping[str, ReplicaStanding]) -> bool:
    """Whether a replica that was told to leave has: it is gone, or nothing is left on it."""
    standing = None if victim is None else standings.get(victim)
    return standing is None or (standing.draining and standing.requests == 0 and standing.sequences == 0)


def _meant(
    proposal: ProposeReplicas, pools: Sequence[PoolState], standings: Mapping[str, ReplicaStanding]
) -> list[PoolState]:
    """The pools that hold, or start with, the role that is scaled; the one of whom can be spared best, if any."""
    if proposal.change < 0 and proposal.spared is not None:
        its = [pool for pool in pools if belongs(proposal.spared, pool.config)]
        if its:
            return its
    holding = [
        pool
        for pool in pools
        if pool.config.role is SCALED_ROLE
        or any(s.role is SCALED_ROLE and belongs(s.replica_id, pool.config) for s in standings.values())
    ]
    return holding or list(pools)


def _order(pool: PoolState, change: int) -> tuple[float, str]:
    """The emptiest grows first, the fullest shrinks first."""
    filled = pool.wanted / pool.config.max_replicas
    return (filled if change > 0 else -filled, pool.config.workload)


def no_longer(shrink: Shrink, pool: PoolState, late_s: float, config: ScalingConfig) -> Refused | None:
    """Why a pool is left as it is after all, now that its victim is empty, or has had its time `late_s` ago."""
    if (claimed := _claimed(pool)) is not None:
        return claimed
    told = None
    if pool.wanted != shrink.pool.wanted:
        told = f"somebody made it {pool.wanted} pods meanwhile"
    elif late_s > config.keep_s:
        told = "it could not be done in time"
    return None if told is None else Refused(f"{pool.config.workload} is not made smaller: {told}", pool)


def _claimed(pool: PoolState) -> Refused | None:
    if pool.claimed_by is None:
        return None
    told = (
        f"the HorizontalPodAutoscaler {pool.claimed_by} scales {pool.config.kind} {pool.config.workload}, so the fleet "
        "leaves it alone: take the pool out of kubernetes.scaling.pools, or the autoscaler away"
    )
    return Refused(told, pool, loud=True)


def _why_not(pool: PoolState, change: int, config: ScalingConfig, now: float) -> Refused | None:
    name = f"{pool.config.kind} {pool.config.workload}"
    if (claimed := _claimed(pool)) is not None:
        return claimed
    if change > 0 and pool.wanted >= pool.config.max_replicas:
        return Refused(f"{name} is at its most, {pool.config.max_replicas}", pool)
    if change < 0 and pool.wanted <= pool.config.min_replicas:
        return Refused(f"{name} is at its least, {pool.config.min_replicas}", pool)
    if pool.present != pool.wanted:
        return Refused(f"{name} has {pool.present} of {pool.wanted} pods: an earlier change is under way", pool)
    left_s = pool.changed_at + config.cooldown_s - now
    if left_s > 0:
        return Refused(f"the size of {name} changed less than {config.cooldown_s:g} s ago", pool)
    return None
