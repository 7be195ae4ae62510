"""One scenario from its first arrival to the end of its last request, and the report of it.

Example: what two replicas in turns make of four requests a second, in ten lines.

    from simulator.run import simulate
    from simulator.scenarios import small

    report = simulate(small(alternating=2, rate=4.0, duration_s=60.0))
    print(report.usual.ttft_s.p90, report.usual.attained)
"""

from __future__ import annotations

import gc
import math
from collections.abc import Iterator
from random import Random

from contracts.errors import PhaseServeError
from scheduling.cluster_invariants import assert_nothing_placed
from scheduling.invariants import assert_nothing_left
from simulator.clock import Clock
from simulator.collector import Collector
from simulator.fleet import SimulatedFleet
from simulator.report import Report
from simulator.reporting import report_of
from simulator.scenario import Scenario
from simulator.timeline import Timeline
from simulator.workload import Arrival, draw

_SETTLE_S = 120.0
"""So long those are waited for that stand still: in one step, or frozen."""
_LOOK_S = 5.0
_GC_ALLOCATIONS = 100_000


class Unfinished(PhaseServeError):
    """A simulated run did not end in the time it was given."""

    code = "unfinished"


def simulate(scenario: Scenario, timeline: Timeline | None = None) -> Report:
    """Run it. The same scenario gives the same report, byte for byte. `timeline` writes down the replicas' phases.

    Raises `ConfigError` for a change to a replica that never was, `Unfinished` when requests are left after the
    scenario's patience, `AssertionError` when one of the cores broke what must always hold.
    """
    return Run(scenario, timeline).finish()


class Run:
    """A scenario under way, for those who want to look inside: `fleet`, `clock`, `collector`."""

    def __init__(self, scenario: Scenario, timeline: Timeline | None = None) -> None:
        self.scenario = scenario
        self.clock = Clock()
        self.collector = Collector(self.clock, scenario.warmup_s, scenario.window_s)
        seeds = Random(scenario.seed)
        chance = Random(seeds.getrandbits(64) + scenario.workload.part)
        self.fleet = SimulatedFleet(scenario, self.clock, self.collector, chance, timeline)
        self.num_opened = 0
        self.last_arrival_s = 0.0
        self._arrivals: Iterator[Arrival] = draw(scenario.workload, Random(seeds.getrandbits(64)), scenario.start_s)
        self._over = False
        self._next()

    def finish(self) -> Report:
        """Go on to the end; the fleet then settles, and nothing may be left of any request.

        What lives during a run is freed by its references: the collector of cycles need hardly look at it."""
        thresholds = gc.get_threshold()
        gc.set_threshold(_GC_ALLOCATIONS, *thresholds[1:])
        try:
            return self._finish()
        finally:
            gc.set_threshold(*thresholds)

    def _finish(self) -> Report:
        clock, scenario = self.clock, self.scenario
        while not clock.run(self._is_done, clock.now + _LOOK_S):
            if not self._over or clock.now < self.last_arrival_s + scenario.patience_s:
                continue
            left = self.num_opened - self.collector.num_ended
            raise Unfinished(f"{left} of {self.num_opened} requests had not ended at {clock.now:.1f} s of the run")
        ended_at = clock.now
        while self._is_unsettled(ended_at) and clock.now < ended_at + max(_SETTLE_S, scenario.patience_s):
            clock.run(_never, clock.now + 1.0)
        self.check(ended_at)
        return report_of(self, ended_at)

    def check(self, ended_at: float = -math.inf) -> None:
        """Every request has ended exactly once, and every block is free, but for what a replica holds that has stood
        still since `ended_at`. Raises `AssertionError`."""
        assert self.collector.num_ended == self.num_opened, "a request was lost or answered twice"
        assert not self.fleet.router.placements.flights
        if self.fleet.router.alive:
            assert_nothing_placed(self.fleet.router.core)
        for place in self.fleet.places.values():
            if place.body.alive and not place.body.stands_still(ended_at):
                assert_nothing_left(place.body.core)
        assert not len(self.fleet.plane), "a transfer is left"

    def _is_unsettled(self, ended_at: float) -> bool:
        waited = self.clock.now >= ended_at + _SETTLE_S
        bodies = [place.body for place in self.fleet.places.values()]
        return bool(len(self.fleet.plane)) or any(
            body.alive and body.core.state.sequences and not (waited and body.stands_still(ended_at)) for body in bodies
        )

    def _next(self) -> None:
        """Ask for the next arrival: one at a time, so that a million requests need no memory."""
        arrival = next(self._arrivals, None)
        scenario = self.scenario
        end_s = math.inf if scenario.workload.num_requests else scenario.start_s + scenario.duration_s
        if arrival is None or arrival.at_s >= end_s:
            self._over = True
            return
        self.clock.at(arrival.at_s, self._arrive, arrival)

    def _arrive(self, arrival: Arrival) -> None:
        self.num_opened += 1
        self.last_arrival_s = self.clock.now
        self.fleet.open(arrival)
        self._next()

    def _is_done(self) -> bool:
        return self._over and self.collector.num_ended == self.num_opened


def _never() -> bool:
    return False
