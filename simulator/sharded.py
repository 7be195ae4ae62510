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
from simulator.reporting import RECOVERY_BELOW, jain_of_tokens, spans_s
from simulator.run import Run
from simulator.scenario import Group, Scenario
from simulator.statistics import jain_index


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
    alive_s = sum(replica.alive_s for report in reports for replica in report.replicas)
    busy_s = sum(replica.busy * replica.alive_s for report in reports for replica in report.replicas)
    everything, keys = seen.all, list(seen.keys.values())
    arrived, ended_at = sum(report.arrived for report in reports), max(report.duration_s for report in reports)
    last_arrival_s = max(shard.last_arrival_s for shard in shards)
    arriving_s, counted_s = spans_s(shards[0].scenario, last_arrival_s, ended_at)
    return msgspec.structs.replace(
        first,
        duration_s=ended_at,
        arrived=arrived,
        finished=everything.finished,
        refused=dict(sorted(seen.refused.items())),
        rate=arrived / arriving_s,
        throughput=everything.finished / counted_s,
        attained_per_s=everything.usual.attained / counted_s,
        output_tokens_per_s=seen.output_tokens / counted_s,
        usual=everything.usual.clocks(everything.ended),
        ecoserve=everything.ecoserve.clocks(everything.ended),
        switch_wait_s=seen.switch_wait.summary(),
        itl_s=seen.itl_s(seen.first_gap),
        itl_ecoserve_s=seen.itl_s(seen.first_gap_ecoserve),
        longest_gap_s=seen.longest_gap.summary(),
        queue_s=seen.queue.summary(),
        longest_wait_s=seen.longest_wait_s,
        e2e_s=seen.e2e.summary(),
        prediction_error=seen.prediction_error.summary(),
        prediction_bias=seen.prediction_total / max(1, seen.prediction_error.count),
        layouts=dict(sorted(seen.layouts.items())),
        placed_again=seen.placed_again,
        handed_over=sum(report.handed_over for report in reports),
        handoffs_failed=sum(report.handoffs_failed for report in reports),
        kv_bytes=sum(report.kv_bytes for report in reports),
        exposed_s=seen.exposed.summary(),
        network_busy=max(report.network_busy for report in reports),
        utilisation=busy_s / max(1e-9, alive_s),
        jain_tokens=jain_of_tokens(seen.keys),
        jain_attained=jain_index([key.attained / key.ended for key in keys]),
        recovery_s=seen.recovery_s(RECOVERY_BELOW),
        classes=tuple(stats.report(name) for name, stats in sorted(seen.classes.items())),
        replicas=tuple(replica for report in reports for replica in report.replicas),
        windows=seen.windows(),
        roles=tuple(seen.roles),
        fleet_decisions=tuple(decision for report in reports for decision in report.fleet_decisions),
        proposals=tuple(seen.proposals),
        events=sum(report.events for report in reports),
    )


def _part_of(group: Group, index: int, count: int) -> Group:
    share, more = divmod(group.count, count)
    if share == 0:
        raise ConfigError(f"{group.prefix}: {group.count} replicas cannot be shared by {count} routers", param="shards")
    return msgspec.structs.replace(group, count=share + (index < more), name=f"{group.prefix}-s{index}")
