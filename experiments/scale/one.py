"""One simulation in a process of its own, measured: `python -m experiments.scale.one`, a `Case` as JSON on stdin.

Prints a `Measured` as JSON. Seconds and bytes are those of this process and its children, from the start of the run to
its report; building the fleet counts, importing does not.
"""

from __future__ import annotations

import sys
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from time import perf_counter, process_time, thread_time_ns

import msgspec

from contracts.cluster_io import ClientRequestArrived, ClusterAction, ClusterEvent, ViewReported
from experiments.scale.cases import beside_vidur, many_replicas, many_requests
from scheduling.cluster_core import ClusterCore
from simulator.report import Report
from simulator.run import Run
from simulator.scenario import Scenario
from simulator.sharded import simulate_sharded
from simulator.statistics import Sketch, Summary


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """`kind`: vidur, requests, memory or replicas, see `experiments.scale.cases` and `experiments.scale.parts`."""

    kind: str
    traces: str = ""
    trace: str = ""
    replicas: int
    num_requests: int
    shards: int = 1
    heartbeat_s: float = 0.1

    def scenario(self) -> Scenario:
        """What is to be run."""
        if self.kind == "vidur":
            return beside_vidur(Path(self.traces), self.replicas, self.num_requests)
        if self.kind in {"requests", "memory"}:
            return many_requests(Path(self.traces), self.trace, self.replicas, self.num_requests)
        return many_replicas(self.replicas, self.num_requests, self.heartbeat_s)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """`decision_us` and `view_us`: `ClusterCore.handle` of an arrival and of a view, where one process ran it all;
    one in eight is timed.
    What has a default is not known of Vidur."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    requests: int
    events: int
    steps: int
    virtual_s: float
    ttft_p50_s: float
    ttft_p90_s: float
    e2e_mean_s: float
    e2e_p50_s: float
    e2e_p90_s: float
    output_tokens: int = 0
    utilisation: float = 0.0
    attained: float = 0.0
    decision_us: Summary = Summary()
    view_us: Summary = Summary()


_ONE_IN = 8
"""Of so many arrivals and views the time of one is taken: to ask what time it is takes as long as many a decision."""


class Watched:
    """Stands before a core's `handle` and takes the time of one in `_ONE_IN` arrivals and views."""

    def __init__(self, core: ClusterCore) -> None:
        self.arrival_us, self.view_us = Sketch(), Sketch()
        self._seen = {ClientRequestArrived: 0, ViewReported: 0}
        self._handle = core.handle
        core.handle = self.handle  # type: ignore[method-assign]

    def handle(self, event: ClusterEvent, now: float) -> list[ClusterAction]:
        """As the core's own."""
        kind = type(event)
        seen = self._seen.get(kind)
        if seen is None:
            return self._handle(event, now)
        self._seen[kind] = seen + 1
        if seen % _ONE_IN:
            return self._handle(event, now)
        began = thread_time_ns()
        actions = self._handle(event, now)
        took_us = (thread_time_ns() - began) / 1e3
        (self.arrival_us if kind is ClientRequestArrived else self.view_us).add(took_us)
        return actions


def measure(case: Case) -> Measured:
    """Run it here."""
    scenario = case.scenario()
    wall, cpu = perf_counter(), process_time()
    if case.shards > 1:
        report, watched = simulate_sharded(scenario, case.shards), None
    else:
        run = Run(scenario)
        watched = Watched(run.fleet.router.core)
        report = run.finish()
    children = getrusage(RUSAGE_CHILDREN)
    return _measured(
        report, watched, perf_counter() - wall, process_time() - cpu + children.ru_utime + children.ru_stime
    )


def _measured(report: Report, watched: Watched | None, wall_s: float, cpu_s: float) -> Measured:
    peak_kb = getrusage(RUSAGE_SELF).ru_maxrss + getrusage(RUSAGE_CHILDREN).ru_maxrss
    return Measured(
        wall_s=wall_s,
        cpu_s=cpu_s,
        peak_mb=peak_kb / 1024,
        requests=report.arrived,
        events=report.events,
        steps=sum(replica.steps for replica in report.replicas),
        output_tokens=sum(replica.output_tokens for replica in report.replicas),
        virtual_s=report.duration_s,
        utilisation=report.utilisation,
        attained=report.attained,
        ttft_p50_s=report.usual.ttft_s.p50,
        ttft_p90_s=report.usual.ttft_s.p90,
        e2e_mean_s=report.e2e_s.mean,
        e2e_p50_s=report.e2e_s.p50,
        e2e_p90_s=report.e2e_s.p90,
        decision_us=Summary() if watched is None else watched.arrival_us.summary(),
        view_us=Summary() if watched is None else watched.view_us.summary(),
    )


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.json.encode(measure(msgspec.json.decode(sys.stdin.buffer.read(), type=Case))))
