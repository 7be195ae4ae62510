"""Changes that overlap: none of them is lost, and none undoes another."""

from __future__ import annotations

import msgspec
import pytest

from simulator.changes import Change, Freeze, Kill, RestartRouter, SetLink
from simulator.lengths import Constant
from simulator.run import Run, simulate
from simulator.scenarios import small

NAME = "mixed-0"


@pytest.mark.parametrize(
    ("changes", "ends_with"),
    [
        ((Freeze(at_s=1.0, replica_id=NAME, for_s=2.0), Freeze(at_s=2.0, replica_id=NAME, for_s=3.0)), 1e9),
        ((Freeze(at_s=1.0, replica_id=NAME, for_s=2.0), SetLink(at_s=2.0, bytes_per_s=5e6, replica_id=NAME)), 5e6),
        ((SetLink(at_s=0.5, bytes_per_s=5e6), Freeze(at_s=1.0, replica_id=NAME, for_s=2.0)), 5e6),
    ],
)
def test_a_frozen_card_carries_nothing_and_then_what_was_set_last(
    changes: tuple[Change, ...], ends_with: float
) -> None:
    lengths = {"prompt": Constant(tokens=10), "output": Constant(tokens=4)}
    scenario = small(mixed=2, rate=1.0, duration_s=9.0, link_bytes_per_s=1e9, **lengths)  # type: ignore[arg-type]
    run = Run(msgspec.structs.replace(scenario, changes=changes))
    place, network = run.fleet.places[NAME], run.fleet.network
    for until_s in (1.5, 2.5, 3.5, 4.5, 5.5, 9.0):
        run.clock.run(lambda: False, until_s)
        expected = 0.0 if place.body.frozen else place.link_bytes_per_s
        assert network.egress[NAME] == network.ingress[NAME] == expected, f"at {until_s} s"
    assert network.egress[NAME] == ends_with


def test_a_router_that_is_down_cannot_die_again() -> None:
    restarts = (RestartRouter(at_s=3.0, restart_s=1.0), RestartRouter(at_s=3.5, restart_s=1.0))
    scenario = small(mixed=1, rate=10.0, duration_s=6.0, prompt=Constant(tokens=10), output=Constant(tokens=4))
    once, twice = (simulate(msgspec.structs.replace(scenario, changes=changes)) for changes in (restarts[:1], restarts))
    assert once.finished == twice.finished > 0
    assert once.refused == twice.refused


def test_a_replica_is_reported_over_all_its_processes() -> None:
    scenario = small(mixed=1, rate=4.0, duration_s=8.0, prompt=Constant(tokens=10), output=Constant(tokens=4))
    killed = msgspec.structs.replace(scenario, changes=(Kill(at_s=4.5, replica_id=NAME, restart_s=0.5),))
    (replica,) = simulate(killed).replicas
    assert replica.iteration_s.count == replica.steps > 50
