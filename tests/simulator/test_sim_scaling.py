"""Proposals about the fleet's size are followed as they are made: the core names who goes, the bounds say whether."""

from __future__ import annotations

import msgspec
import pytest

from contracts.cluster_io import ProposeReplicas
from scheduling.config import ClusterCoreConfig
from scheduling.macro_config import MacroConfig
from simulator.lengths import Constant
from simulator.report import Report
from simulator.run import Run, simulate
from simulator.scenario import Scaling, Scenario
from simulator.scenarios import small

_CLUSTER = ClusterCoreConfig(macro=MacroConfig(window_s=2.0, propose_every_s=3.0))


def idle(scaling: Scaling, alternating: int = 3, mixed: int = 0) -> Scenario:
    """Replicas with hardly anything to do."""
    output = Constant(tokens=20)
    made = small(alternating=alternating, mixed=mixed, rate=0.5, duration_s=30.0, output=output, cluster=_CLUSTER)
    return msgspec.structs.replace(made, scaling=scaling)


def named(report: Report, kind: str) -> list[str | None]:
    """The replicas of the core's decisions of one kind, oldest first."""
    found = sorted((decision for decision in report.fleet_decisions if decision.kind == kind), key=lambda one: one.at_s)
    return [decision.replica_id for decision in found]


def told(scenario: Scenario, *proposals: ProposeReplicas) -> list[str]:
    """Those that leave after such proposals, each made a second after the one before, the core making none so soon."""
    run = Run(msgspec.structs.replace(scenario, cluster=ClusterCoreConfig()))
    for number, proposal in enumerate(proposals):
        run.clock.at(2.0 + number, run.collector.proposed, proposal)
    run.clock.run(lambda: False, 3.0 + len(proposals))
    return [place.replica_id for place in run.fleet.places.values() if place.body.core.state.draining]


def test_those_leave_that_the_core_names() -> None:
    """Of replicas that have nothing to do it names the oldest first."""
    report = simulate(idle(Scaling(most=3)))
    proposed = named(report, "propose_fewer")
    assert named(report, "drain") == proposed == ["alternating-0", "alternating-1"]
    assert report.finished == report.arrived


def test_as_many_stay_as_are_to() -> None:
    report = simulate(idle(Scaling(most=3, least=2)))
    proposed = named(report, "propose_fewer")
    assert len(proposed) > 1
    assert named(report, "drain") == proposed[:1]


def test_nobody_leaves_who_is_not_named_or_not_of_the_group() -> None:
    fewer = ProposeReplicas(-1, "idle")
    other = ProposeReplicas(-1, "idle", "mixed-0")
    assert told(idle(Scaling(most=3), alternating=2, mixed=2), fewer, other) == []
    both = ProposeReplicas(-1, "idle", "mixed-1"), ProposeReplicas(-1, "idle", "alternating-1")
    assert told(idle(Scaling(most=3, group=1), alternating=2, mixed=2), *both) == ["mixed-1"]


@pytest.mark.parametrize(("others", "left"), [(0, []), (1, ["alternating-0"])])
def test_nobody_leaves_whom_the_core_cannot_do_without(others: int, left: list[str]) -> None:
    """The bounds alone would let the last one go."""
    scenario = idle(Scaling(most=3, least=0), alternating=1, mixed=others)
    assert told(scenario, ProposeReplicas(-1, "idle", "alternating-0")) == left
