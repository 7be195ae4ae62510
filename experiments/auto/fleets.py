"""The layouts that a fleet of some replicas can be run in: every static one, and `auto`, which may change."""

from __future__ import annotations

import msgspec

from experiments.crossover.sites import CHUNK
from scheduling.config import ClusterCoreConfig, LayoutPolicy
from scheduling.fleet_mixes import Mix
from scheduling.planner_config import PlannerConfig

AUTO = "auto"


class Fleet(msgspec.Struct, frozen=True, kw_only=True):
    """Replicas by role at the start, the layout demanded of the router, and whether the planner is on."""

    name: str
    mix: Mix
    layout: LayoutPolicy = "auto"
    planner: bool = False

    @property
    def uses_link(self) -> bool:
        """Whether its figures depend on the link: others need not be run at every rate of it."""
        return self.planner or self.mix.prefill > 0

    @property
    def cluster(self) -> ClusterCoreConfig:
        """The settings of the cluster core."""
        return ClusterCoreConfig(layout=self.layout, prefill_chunk=CHUNK, planner=PlannerConfig(enabled=self.planner))


def static_fleets(replicas: int) -> list[Fleet]:
    """All of them mixed, all alternating, every P:D ratio, and half and half of mixed replicas and a pair of pools."""
    fleets = [
        Fleet(name=f"{replicas} mixed", mix=Mix(mixed=replicas), layout="colocated"),
        Fleet(name=f"{replicas} alternating", mix=Mix(alternating=replicas), layout="phased"),
    ]
    for prefill in range(1, replicas):
        mix = Mix(prefill=prefill, decode=replicas - prefill)
        fleets.append(Fleet(name=f"{prefill}P:{replicas - prefill}D", mix=mix, layout="disaggregated"))
    if replicas > 2:
        beside = Mix(mixed=replicas - 2, prefill=1, decode=1)
        fleets.append(Fleet(name=f"{replicas - 2} mixed + 1P:1D", mix=beside))
    return fleets


def auto_fleet(replicas: int) -> Fleet:
    """All mixed at the start; the router chooses for each request, the planner gives the roles."""
    return Fleet(name=AUTO, mix=Mix(mixed=replicas), planner=True)
