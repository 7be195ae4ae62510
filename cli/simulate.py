"""`phaseserve simulate`: the same cores on a virtual clock, one configuration, one report.

[scheduling] [cluster] [slo]   as for `phaseserve up`
[simulate]                     simulator.scenario.Scenario: duration_s, seed, latency_s, ...
[[simulate.fleet]]             role, count, num_blocks, link_bytes_per_s, cost = {kind = "fitted", a0 = 0.02, a1 = 3e-4}
[simulate.workload]            arrivals = {kind = "gamma", rate = 4.0}, prompt, output, trace = {path = "..."}, ...
[[simulate.changes]]           kind = "kill", at_s = 10.0, replica_id = "decode-1", ...

Without a file: a small fleet of CodeLlama2-34B on L20 cards, by --alternating, --mixed, --prefill, --decode and --rate.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any

import msgspec

from cli.overlay import build, parse_assignment, read_toml
from cli.settings import Settings
from cli.simulated_table import table_of
from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.goodput import at_rate
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.scenarios import small, under


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="phaseserve simulate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="one setting, e.g. simulate.seed=3")
    for role in Role:
        parser.add_argument(f"--{role.value}", type=int, default=0, metavar="N", help=f"so many {role.value} replicas")
    parser.add_argument("--policy", help="an admission rule with all that belongs to it, e.g. ecoserve_paper")
    parser.add_argument("--rate", type=float, help="mean rate of arrivals, requests per second")
    parser.add_argument("--duration", type=float, help="seconds of arrivals")
    parser.add_argument("--seed", type=int, help="another seed, another run")
    parser.add_argument("--json", metavar="FILE", help="write the whole report there (-: to standard output)")
    return parser.parse_args(words)


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """What file and command line say together. Raises `ConfigError` naming what is unknown or wrong."""
    layers = [read_toml(arguments.config)] if arguments.config else []
    settings = Settings([*layers, *map(parse_assignment, arguments.set)])
    given = settings.table("simulate")
    counts = {role.value: getattr(arguments, role.value) for role in Role}
    if min(counts.values()) < 0:
        raise ConfigError("the number of replicas must not be negative", param="--alternating")
    if sum(counts.values()) and "fleet" in given:
        raise ConfigError("replicas are counted on the command line and in [[simulate.fleet]]", param="simulate.fleet")
    cores: dict[str, dict[str, Any]] = {name: settings.table(name) for name in ("scheduling", "cluster")}
    build(ReplicaCoreConfig, [cores["scheduling"]])  # so that an error names the section as it was written
    build(ClusterCoreConfig, [cores["cluster"]])
    slo = build(Slo, [settings.table("slo")]) if settings.table("slo") else None
    if "fleet" in given:
        scenario = build(Scenario, [given, cores])
    else:
        usual = small(slo=slo, **(counts if sum(counts.values()) else {"alternating": 2}))
        scenario = build(Scenario, [msgspec.to_builtins(usual), given, cores])
    if slo is not None and "classes" not in given.get("workload", {}):
        classes = tuple(msgspec.structs.replace(kind, slo=slo) for kind in scenario.workload.classes)
        workload = msgspec.structs.replace(scenario.workload, classes=classes)
        scenario = msgspec.structs.replace(scenario, workload=workload)
    return _options(scenario, arguments)


def run(words: list[str]) -> int:
    """Simulate, print the table, write the report. Raises `ConfigError` for what is wrong, before anything runs."""
    arguments = parse(words)
    scenario = scenario_of(arguments)
    target = None if arguments.json in (None, "-") else Path(arguments.json)
    if target is not None and not target.parent.is_dir():
        raise ConfigError(f"--json: there is no folder {target.parent}", param="--json")
    report = simulate(scenario)
    if arguments.json == "-":
        sys.stdout.write(report.json().decode() + "\n")
        return 0
    print(table_of(report))
    if target is not None:
        _write(target, report.json())
    return 0


def _options(scenario: Scenario, arguments: argparse.Namespace) -> Scenario:
    changes: dict[str, Any] = {}
    if arguments.duration is not None:
        changes["duration_s"] = arguments.duration
    if arguments.seed is not None:
        changes["seed"] = arguments.seed
    scenario = msgspec.structs.replace(scenario, **changes)
    if arguments.policy is not None:
        scenario = under(scenario, arguments.policy)
    return scenario if arguments.rate is None else at_rate(scenario, arguments.rate)


def _write(target: Path, text: bytes) -> None:
    """All of it or nothing."""
    partial = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        partial.write_bytes(text + b"\n")
        partial.replace(target)
    except OSError as error:
        raise ConfigError(f"--json {target}: {error.strerror}", param="--json") from error
