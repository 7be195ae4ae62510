"""Memory grows with the requests in flight, not with those served."""

from __future__ import annotations

import gc

import pytest

from scheduling.config import ClusterCoreConfig
from simulator.lengths import Constant
from simulator.run import Run
from simulator.scenarios import small


def peak_objects(num_requests: int) -> tuple[int, int]:
    """The most objects that were alive at once in a run, over those before it, and the most requests in flight."""
    gc.collect()
    gc.freeze()  # what other tests have left is not looked through again at each count
    before = len(gc.get_objects())
    scenario = small(
        mixed=1,
        decode=1,
        prefill=1,
        rate=40.0,
        num_requests=num_requests,
        prompt=Constant(tokens=40),
        output=Constant(tokens=3),
        cluster=ClusterCoreConfig(decisions_kept=32),
    )
    run = Run(scenario)
    most, flying = 0, 0
    while not run.clock.run(lambda: run.collector.num_ended == num_requests, run.clock.now + 5.0):
        gc.collect()
        most = max(most, len(gc.get_objects()) - before)
        flying = max(flying, len(run.fleet.router.placements.flights))
    run.finish()
    return most, flying


def test_twice_the_requests_need_no_more_objects() -> None:
    """Once the bounded windows, of arrivals above all, are full."""
    few, few_flying = peak_objects(3000)
    many, many_flying = peak_objects(6000)
    assert many <= 1.1 * few + 40 * (many_flying - few_flying)


@pytest.mark.slow
def test_four_thousand_and_twenty_thousand() -> None:
    few, few_flying = peak_objects(4000)
    many, many_flying = peak_objects(20_000)
    assert many <= 1.05 * few + 40 * (many_flying - few_flying)
