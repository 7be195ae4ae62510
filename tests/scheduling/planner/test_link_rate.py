"""What links are counted on for when some were measured lately."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.cluster_io import ViewReported
from contracts.phase import Role
from scheduling.cluster_core import ClusterCore
from scheduling.fleet_site import link_rate

P, D = Role.PREFILL, Role.DECODE


@pytest.mark.parametrize(("fresh", "found"), [(4e8, 1e9), (1e7, 1e7)])
def test_a_collapse_is_believed_at_once_and_a_shared_link_is_not_one(
    planned: Callable[..., ClusterCore], cluster: Any, fresh: float, found: float
) -> None:
    core = planned({"r0": P, "r1": P, "r2": D, "r3": D})
    idle = tuple(cluster.link(peer, 1e9, age_s=20.0) for peer in ("r0", "r1", "r3"))
    for name, role in (("r0", P), ("r1", P), ("r2", D), ("r3", D)):
        links = (cluster.link("r2", fresh, age_s=1.0),) if name == "r0" else idle if name == "r2" else ()
        core.handle(ViewReported(cluster.view(name, role=role, links=links)), 1.0)
    members = list(core.placement.fleet)
    rate = link_rate(members, core.placement.fleet, core.placement.config, 1.0)
    assert rate == pytest.approx(found, rel=0.1)


@pytest.mark.parametrize(("spread", "in_flight", "age_s", "found"), [(0.9, 0, 0.5, 1e9), (0.0, 1, 0.0, 5e7)])
def test_contradictory_measurements_are_no_collapse_and_overdue_transfers_are_one(
    planned: Callable[..., ClusterCore], cluster: Any, spread: float, in_flight: int, age_s: float, found: float
) -> None:
    core = planned({"r0": P, "r1": P, "r2": D, "r3": D})
    idle = tuple(cluster.link(peer, 1e9, age_s=20.0) for peer in ("r0", "r1", "r3"))
    measured = 2e8 if in_flight else 4e8
    for name, role in (("r0", P), ("r1", P), ("r2", D), ("r3", D)):
        link = cluster.link("r2", measured, age_s=age_s, spread=spread, bytes_in_flight=in_flight)
        links = (link,) if role is P else idle if name == "r2" else ()
        core.handle(ViewReported(cluster.view(name, role=role, links=links)), 1.0)
    members = list(core.placement.fleet)
    rate = link_rate(members, core.placement.fleet, core.placement.config, 1.0)
    assert rate == pytest.approx(found, rel=0.1)
