"""The live set-up as a scenario, and what the simulator makes of the requests that the live system had."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import msgspec

from contracts.phase import Role
from contracts.request import Slo
from experiments.bandwidth_sweep.seen import Seen, seen_of
from experiments.calibration.workload import write_trace
from experiments.macro_live.workload import Ask
from scheduling.config import ReplicaCoreConfig
from simulator.cost import Fitted, Table
from simulator.cost_file import CostFile
from simulator.observer import RouterTimes
from simulator.run import Run
from simulator.scenario import Group, Scenario
from simulator.traces import Trace
from simulator.workload import RequestClass, Workload

ROLES: dict[str, dict[Role, int]] = {
    "alternating": {Role.ALTERNATING: 2},
    "mixed": {Role.MIXED: 2},
    "1p1d": {Role.PREFILL: 1, Role.DECODE: 1},
}
"""The layouts of `experiments.macro_live.serving`, which this process can be asked for."""


_NO_LINK = 1.25e9


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """What the live system adds to its steps, in seconds: a message between router and replica, the time from one
    step's end to the next one's begin. `link_bytes_per_s` is what the fleet's links carry (None: no links). `beside` is
    what router, loops, transfers and client compute for each CPU second of an engine: on a core of its own while one
    engine rests, in the time of both while there is none."""

    message_s: float = 0.0005
    turn_s: float = 0.0
    link_bytes_per_s: float | None = None
    beside: float = 0.0


def scenario(
    layout: str, requests: Sequence[Ask], cost: CostFile, around: Around, slo: Slo, seed: int, trace: Path
) -> Scenario:
    """The same replicas, settings and requests; `trace` is the file of the latter."""
    write_trace(trace, requests)
    replica = cost.of_group()
    if replica["crowded"] is not None:
        replica["crowded"] = slowed(replica["crowded"], 1.0 + around.beside)
    fleet = tuple(
        Group(
            role=role,
            count=count,
            machine="this one",
            turn_s=around.turn_s,
            link_bytes_per_s=around.link_bytes_per_s or _NO_LINK,
            **replica,
        )
        for role, count in ROLES[layout].items()
    )
    workload = Workload(trace=Trace(path=str(trace)), classes=(RequestClass(slo=slo),))
    return Scenario(
        fleet=fleet,
        workload=workload,
        duration_s=requests[-1].at_s + 1.0,
        seed=seed,
        scheduling=ReplicaCoreConfig(),
        router=RouterTimes(message_s=around.message_s),
        patience_s=600.0,
    )


def slowed(cost: Fitted | Table, factor: float) -> Fitted | Table:
    """The same with every step so many times as long."""
    if isinstance(cost, Table):
        points = tuple((tokens, factor * seconds) for tokens, seconds in cost.points)
        return Table(points=points, context_s=factor * cost.context_s, pair_s=factor * cost.pair_s)
    return Fitted(**{name: factor * getattr(cost, name) for name in cost.__struct_fields__})


def simulated(one: Scenario, count: int) -> tuple[list[Seen], dict[str, float]]:
    """What each request saw, in the order of the trace, by the simulated router's clock; and how busy replicas were."""
    run = Run(one)
    report = run.finish()
    decisions = {decision.request_id: decision for decision in run.fleet.router.core.decisions()}
    shown = [decisions.get(f"r{number}") for number in range(count)]
    seen = [seen_of(None if found is None else json.loads(msgspec.json.encode(found)), None) for found in shown]
    return seen, {replica.replica_id: replica.busy for replica in report.replicas}
