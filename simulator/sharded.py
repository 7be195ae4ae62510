"""A run in several processes: what a deployment with so many shared-nothing routers does, each with its own replicas.

Live, `router.shard` of `router.shards` owns its part of the replicas (`scheduling.shards`), a load balancer in front
gives each router its part of the requests, and no two routers decide about one replica. So the parts of such a fleet
have nothing to say to each other, and each is a run of its own: every group of the fleet is divided as evenly as can
be, requests by a hash of their number, and the reports become one. That is another fleet than one router over all
replicas: a router cannot place a request on another's replica. The same scenario and number of shards give the same
report byte for byte, however many processes there are.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import msgspec

from contracts.errors import ConfigError
from simulator.collector import Collector
from simulator.report import Report
from simulator.reporting import composed
from simulator.run import Run
from simulator.scenario import Group, Scenario


@dataclass(frozen=True, slots=True)
class ShardRun:
    """What one shard found: its own report, and the distributions behind it. When its last request arrived."""

    scenario: Scenario
    report: Report
    seen: Collector
    last_arrival_s: float


def shard_of(scenario: Scenario, index: int, count: int) -> Scenario:
    """The part of router `index` of `count`. Raises `ConfigError` for what cannot be divided: fewer replicas in a group
    than routers, and changes and scaling, which name replicas or the whole fleet."""
    if not 0 <= index < count:
        raise ConfigError(f"there is no shard {index} of {count}", param="shards")
    if count == 1:
        return scenario
    if scenario.changes or scenario.scaling.most:
        raise ConfigError("a run in shards has no changes and does not scale", param="shards")
    return msgspec.structs.replace(
        scenario,
        fleet=tuple(_part_of(group, index, count) for group in scenario.fleet),
        workload=msgspec.structs.replace(scenario.workload, part=index, parts=count),
    )


def simulate_sharded(scenario: Scenario, shards: int, workers: int | None = None) -> Report:
    """Run all shards, `workers` (as many as there are) at a time, each in a process of its own, and say what they found
    together. Raises as `shard_of` and `simulator.run.simulate` do."""
    parts = [shard_of(scenario, index, shards) for index in range(shards)]
    if shards == 1 or workers == 1:
        return merged([run_shard(part) for part in parts])
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(shards, workers or shards), mp_context=context) as pool:
        return merged(list(pool.map(run_shard, parts)))


def run_shard(scenario: Scenario) -> ShardRun:
    """One part, here."""
    run = Run(scenario)
    return ShardRun(scenario, run.finish(), run.collector.detach(), run.last_arrival_s)


def merged(shards: Sequence[ShardRun]) -> Report:
    """One report of all parts, in their order. `duration_s` is the longest, and rates are over all of it."""
    first, reports = shards[0].report, [shard.report for shard in shards]
    if len(shards) == 1:
        return first
    seen = shards[0].seen
    for shard in shards[1:]:
        seen.take(shard.seen)
    return composed(
        seen,
        shards[0].scenario,
        ended_at=max(report.duration_s for report in reports),
        last_arrival_s=max(shard.last_arrival_s for shard in shards),
        arrived=sum(report.arrived for report in reports),
        replicas=tuple(replica for report in reports for replica in report.replicas),
        handed_over=sum(report.handed_over for report in reports),
        handoffs_failed=sum(report.handoffs_failed for report in reports),
        kv_bytes=sum(report.kv_bytes for report in reports),
        network_busy=max(report.network_busy for report in reports),
        fleet_decisions=tuple(decision for report in reports for decision in report.fleet_decisions),
        events=sum(report.events for report in reports),
    )


def _part_of(group: Group, index: int, count: int) -> Group:
    share, more = divmod(group.count, count)
    if share == 0:
        raise ConfigError(f"{group.prefix}: {group.count} replicas cannot be shared by {count} routers", param="shards")
    return msgspec.structs.replace(group, count=share + (index < more), name=f"{group.prefix}-s{index}")
