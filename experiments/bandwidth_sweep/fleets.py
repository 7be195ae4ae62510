"""The fleets of a sweep: so many hosts on one Ethernet, one replica on each, one fleet for each way to lay out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from contracts.phase import Layout, Role
from experiments.bandwidth_sweep.options import AUTO, BITS, Options
from experiments.network.fleet import LanFleet
from experiments.network.lan import Lan

QUEUE_S = 0.1
MODEL = "smollm2-135m"


def groups(options: Options) -> list[tuple[Mapping[str, Role], tuple[str, ...]]]:
    """Fleets by the roles of their replicas, and what is measured on each: a forced hand-off and `auto` share one."""
    half = options.replicas // 2
    pools = {f"p{i}": Role.PREFILL for i in range(half)} | {f"d{i}": Role.DECODE for i in range(half)}
    known: list[tuple[Mapping[str, Role], tuple[str, ...]]] = [
        (dict.fromkeys((f"m{i}" for i in range(options.replicas)), Role.MIXED), (Layout.COLOCATED.value,)),
        (dict.fromkeys((f"a{i}" for i in range(options.replicas)), Role.ALTERNATING), (Layout.PHASED.value,)),
        (pools, (Layout.DISAGGREGATED.value, AUTO)),
    ]
    wanted = [(roles, tuple(mode for mode in modes if mode in options.modes)) for roles, modes in known]
    return [(roles, modes) for roles, modes in wanted if modes]


@dataclass(slots=True)
class Running:
    """One fleet on its hosts."""

    lan: Lan
    fleet: LanFleet

    def shape(self, mbit_per_s: float) -> None:
        """Give every host a link of this rate."""
        for name in self.lan.hosts:
            self.lan.shape(name, mbit_per_s / BITS, queue_s=QUEUE_S)

    def wire_bytes(self) -> int:
        """What all hosts have sent so far."""
        return sum(self.lan.bytes_sent(name) for name in self.lan.hosts)

    def snapshot(self) -> Mapping[str, Any]:
        """What the router knows about the fleet now."""
        snapshot: Mapping[str, Any] = self.fleet.get("/decisions?limit=1")["fleet"]
        return snapshot


@contextmanager
def running(roles: Mapping[str, Role], options: Options) -> Iterator[Running]:
    """Start the fleet, end it. Raises `LanError` and `FleetError`."""
    with Lan(list(roles)) as lan, LanFleet(
        lan, roles, model=MODEL, settings=options.replica_settings, router_settings=options.router_settings
    ) as fleet:  # fmt: skip
        yield Running(lan, fleet)
