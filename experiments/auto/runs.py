"""Runs of loads on fleets: a scan over the rate for recorded traces, one run each where the load itself changes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from experiments.auto.fleets import Fleet, auto_fleet, static_fleets
from experiments.auto.loads import MOST_PROMPT, Load
from experiments.crossover.formula import rates_at
from experiments.crossover.sites import CHUNK, MAX_RUNNING
from scheduling.config import ReplicaCoreConfig
from scheduling.fleet_mixes import carried
from simulator.goodput import at_rate, interpolated_goodput
from simulator.grid import Case, Row, Value, run_grid
from simulator.links import BYTES_PER_GBIT
from simulator.report import Report
from simulator.scenario import Scenario
from simulator.scenarios import small

SHARE = 0.9
FACTORS = (0.5, 0.65, 0.8, 1.0)
"""Of what the best static mix is predicted to carry; a scan ends where attainment is below `HOPELESS`."""
HOPELESS = 0.75
WORTH_A_RUN = 0.7
"""Static fleets predicted to carry less than this share of the best one are not run."""
SETTLED_S = 60.0
"""Attainment is said of the whole run, and of what arrived after so long."""


def course(report: Report) -> Mapping[str, Value]:
    """What was attained of the arrivals after `SETTLED_S`, and by windows of time, and which roles changed when."""
    later = [window for window in report.windows if window.from_s >= SETTLED_S]
    arrived = sum(window.arrived for window in later)
    return {
        "settled": sum(window.attained for window in later) / arrived if arrived else 0.0,
        "windows": json.dumps([[window.from_s, window.arrived, window.attained] for window in report.windows]),
        "changes": json.dumps([[change.at_s, change.replica_id, change.role] for change in report.roles]),
        "moves": sum(decision.kind == "mix" for decision in report.fleet_decisions),
    }


class Scan(msgspec.Struct, frozen=True, kw_only=True):
    """One fleet over one link: at each rate, ascending, what was attained in the whole run (usual clock) and after
    `SETTLED_S`. `moves` are the times that the planner chose another mix, at all rates together."""

    load: str
    link_gbit: float
    fleet: str
    points: tuple[tuple[float, float, float], ...]
    moves: int = 0
    rows: tuple[Row, ...] = ()
    error: str = ""

    @property
    def goodput(self) -> float:
        """The rate at which attainment falls below `SHARE`, on a straight line between two rates; 0: never above."""
        return interpolated_goodput([(rate, attained) for rate, attained, _ in self.points], SHARE)[0]

    def at(self, rate: float, part: int = 1) -> float:
        """Attainment at a scanned rate, of the whole run (1) or once settled (2); 0 above the last one."""
        return next((point[part] for point in self.points if point[0] == rate), 0.0)


class Runner:
    """Runs what is asked for, through one store."""

    def __init__(self, store: Path | None, workers: int, replicas: int) -> None:
        self._store = store
        self._workers = workers
        self._replicas = replicas
        self._known: dict[tuple[str, str], Scan] = {}

    def scans(self, load: Load, link_gbit: float) -> list[Scan]:
        """Every static fleet and `auto` over links of this rate. What does not use links is run once for all rates."""
        deployment, demand = load.deployment, load.demand
        found = []
        statics = static_fleets(self._replicas)
        base = max(carried(fleet.mix, rates_at(deployment, demand, 1e13)) for fleet in statics)
        there = rates_at(deployment, demand, link_gbit * BYTES_PER_GBIT)
        most = max(carried(fleet.mix, there) for fleet in statics)
        for fleet in (*statics, auto_fleet(self._replicas)):
            if not fleet.planner and carried(fleet.mix, there) < WORTH_A_RUN * most:
                continue
            known = self._known.get((load.name, fleet.name))
            if known is not None and not fleet.uses_link:
                scan = msgspec.structs.replace(known, link_gbit=link_gbit)
            else:
                scan = self._known[load.name, fleet.name] = self._scan(load, link_gbit, fleet, base)
            print(_told(scan), flush=True)
            found.append(scan)
        return found

    def once(self, load: Load, link_gbit: float, fleets: Sequence[Fleet]) -> list[tuple[Fleet, Row]]:
        """Each of the fleets under the load as it was written."""
        labels: dict[str, str | int | float] = {"load": load.name, "link_gbit": link_gbit}
        labels["trace"] = Path(load.trace.path).stem
        cases = [Case({**labels, "fleet": fleet.name}, scenario_of(load, link_gbit, fleet)) for fleet in fleets]
        return list(zip(fleets, self._rows(cases), strict=True))

    def _scan(self, load: Load, link: float, fleet: Fleet, base: float) -> Scan:
        points, rows, error = [], [], ""
        for factor in FACTORS:
            rate = _rounded(factor * base)
            scenario = at_rate(scenario_of(load.played_at(rate), link, fleet), rate)
            labels: dict[str, str | int | float] = {"load": load.name, "link_gbit": link, "fleet": fleet.name}
            row = self._rows([Case({**labels, "rate": rate}, scenario)])[0]
            if row.error:
                error = row.error
                break
            rows.append(row)
            points.append((rate, row.number("usual.attained"), row.number("settled")))
            if points[-1][1] < HOPELESS:
                break
        return Scan(
            load=load.name,
            link_gbit=link,
            fleet=fleet.name,
            points=tuple(points),
            moves=sum(int(row.number("moves")) for row in rows),
            rows=tuple(rows),
            error=error,
        )

    def _rows(self, cases: Sequence[Case]) -> list[Row]:
        return run_grid(cases, self._store, self._workers, progress=False, extra=course)


def scenario_of(load: Load, link_gbit: float, fleet: Fleet) -> Scenario:
    """The whole of the load on that fleet, all of its links at one rate in the beginning."""
    there = load.deployment
    scenario = small(
        alternating=fleet.mix.alternating,
        mixed=fleet.mix.mixed,
        prefill=fleet.mix.prefill,
        decode=fleet.mix.decode,
        cluster=fleet.cluster,
        slo=load.slo,
        cost=there.cost,
        kv=there.kv,
        num_blocks=there.num_blocks,
        max_context=there.max_context,
        link_bytes_per_s=link_gbit * BYTES_PER_GBIT,
        scheduling=ReplicaCoreConfig(max_running=MAX_RUNNING, max_chunk=CHUNK, prefix_cache=load.prefix_cache),
    )
    workload = msgspec.structs.replace(scenario.workload, trace=load.trace, max_prompt=MOST_PROMPT)
    return msgspec.structs.replace(scenario, workload=workload, duration_s=1e6, warmup_s=0.0, changes=load.changes)


def _rounded(rate: float) -> float:
    """To three digits: as it is printed."""
    digits = 2 - math.floor(math.log10(rate))
    return round(rate, digits)


def _told(scan: Scan) -> str:
    points = ", ".join(f"{rate:g}: {whole:.3f} ({settled:.3f})" for rate, whole, settled in scan.points)
    return f"{scan.load}, {scan.link_gbit:g} Gbit/s, {scan.fleet}: {points} {scan.error}"
