"""Makes a report out of what was collected and what the cores know at the end of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from contracts.plan import FleetDecision
from simulator.clock import Clock
from simulator.collector import Collector, KeyStats
from simulator.fleet import Place, SimulatedFleet
from simulator.pipeline import Pipeline
from simulator.report import Bubbles, ReplicaReport, Report
from simulator.scenario import Scenario
from simulator.statistics import Sketch, jain_index

RECOVERY_BELOW = 0.9


class Ran(Protocol):
    """A run that is over."""

    scenario: Scenario
    clock: Clock
    collector: Collector
    fleet: SimulatedFleet
    num_opened: int
    last_arrival_s: float


def report_of(run: Ran, ended_at: float) -> Report:
    """The report; `ended_at` is when the last request ended, in seconds of the run."""
    fleet = run.fleet
    return composed(
        run.collector,
        run.scenario,
        ended_at=ended_at,
        last_arrival_s=run.last_arrival_s,
        arrived=run.num_opened,
        replicas=tuple(_replica(place, ended_at) for place in fleet.places.values()),
        handed_over=fleet.plane.handed_over,
        handoffs_failed=fleet.plane.failed,
        kv_bytes=fleet.network.num_bytes,
        network_busy=fleet.network.busy_s / max(1e-9, ended_at),
        fleet_decisions=tuple(reversed(fleet.router.core.fleet_decisions())),
        events=run.clock.num_done,
    )


def composed(
    seen: Collector,
    scenario: Scenario,
    *,
    ended_at: float,
    last_arrival_s: float,
    arrived: int,
    replicas: tuple[ReplicaReport, ...],
    handed_over: int,
    handoffs_failed: int,
    kv_bytes: float,
    network_busy: float,
    fleet_decisions: tuple[FleetDecision, ...],
    events: int,
) -> Report:
    """A report of the requests that were `seen`, and of what is known of the fleet beside them."""
    everything, keys = seen.everything(), seen.keys
    arriving_s, counted_s = _spans_s(scenario, last_arrival_s, ended_at)
    return Report(
        seed=scenario.seed,
        duration_s=ended_at,
        arrived=arrived,
        finished=everything.finished,
        refused=dict(sorted(seen.refused.items())),
        refusals=seen.refusals.report(),
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
        handed_over=handed_over,
        handoffs_failed=handoffs_failed,
        kv_bytes=kv_bytes,
        exposed_s=seen.exposed.summary(),
        network_busy=network_busy,
        utilisation=_utilisation(replicas),
        jain_tokens=_jain_of_tokens(keys),
        jain_attained=jain_index([key.attained / key.ended for key in keys.values()]),
        recovery_s=seen.recovery_s(RECOVERY_BELOW),
        recovery_below=RECOVERY_BELOW,
        classes=tuple(stats.report(name) for name, stats in sorted(seen.classes.items())),
        replicas=replicas,
        windows=seen.windows(),
        roles=tuple(seen.roles),
        fleet_decisions=fleet_decisions,
        proposals=tuple(seen.proposals),
        events=events,
    )


def _spans_s(scenario: Scenario, last_arrival_s: float, ended_at: float) -> tuple[float, float]:
    """What rates are per second of: the seconds in which requests arrived, and those that are counted."""
    arriving_s = max(1e-9, last_arrival_s - scenario.start_s)
    return arriving_s, max(1e-9, ended_at - max(scenario.start_s, scenario.warmup_s))


def _utilisation(replicas: tuple[ReplicaReport, ...]) -> float:
    alive_s = sum(replica.alive_s for replica in replicas)
    return sum(replica.busy * replica.alive_s for replica in replicas) / max(1e-9, alive_s)


def _bubbles(pipelines: list[Pipeline]) -> Bubbles:
    found = [pipeline.bubbles for pipeline in pipelines]
    return Bubbles(
        p_p=sum(bubbles.p_p for bubbles in found),
        p_d=sum(bubbles.p_d for bubbles in found),
        d_d=sum(bubbles.d_d for bubbles in found),
        starved=sum(bubbles.starved for bubbles in found),
    )


def _jain_of_tokens(keys: Mapping[str, KeyStats]) -> float:
    """How evenly keys were served for what they asked."""
    return jain_index([key.served_tokens / max(1, key.asked_tokens) for key in keys.values()])


def _replica(place: Place, ended_at: float) -> ReplicaReport:
    bodies = [*place.ended, place.body]
    alive_s = sum((ended_at if body.ended_at is None else body.ended_at) - body.started_at for body in bodies)
    works = [body.engine.work for body in bodies]
    counters = [body.core.state.counters for body in bodies]
    state, iteration = place.body.core.state, Sketch()
    for work in works:
        iteration.take(work.iteration)
    pipelines = [body.engine.pipeline for body in bodies if body.engine.pipeline is not None]
    return ReplicaReport(
        replica_id=place.replica_id,
        role=state.role.value,
        alive_s=alive_s,
        busy=sum(work.busy_s for work in works) / max(1e-9, alive_s),
        prefill_s=sum(work.prefill_s for work in works),
        decode_s=sum(work.decode_s for work in works),
        mixed_s=sum(work.mixed_s for work in works),
        steps=sum(work.steps for work in works),
        prompt_tokens=sum(work.prompt_tokens for work in works),
        output_tokens=sum(work.output_tokens for work in works),
        preemptions=sum(counter.preemptions for counter in counters),
        prefix_hit_tokens=sum(counter.prefix_hit_tokens for counter in counters),
        kv_bytes_in=sum(counter.kv_bytes_in for counter in counters),
        overdraft_s=sum(counter.overdraft_s for counter in counters),
        mape=state.predictor.mape,
        stages=max((pipeline.num_stages for pipeline in pipelines), default=1),
        iteration_s=iteration.summary(),
        bubbles_s=_bubbles(pipelines),
    )
