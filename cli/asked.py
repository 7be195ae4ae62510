"""One configuration for the simulator, from files, `--set` and the named options of `simulate` and `sweep`.

What is said by name wins over the files. Layout, policy, model and data set are words for several settings at once.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import msgspec

from cli.overlay import build
from cli.settings import Settings
from cli.simulated_fleet import measured, with_replicas
from cli.usual_request import check_room
from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator import scenarios
from simulator.bounds import MOST_BYTES_S, bound
from simulator.goodput import at_rate
from simulator.layouts import laid_out
from simulator.lengths import Lengths
from simulator.links import BYTES_PER_GBIT
from simulator.scenario import Scenario
from simulator.scenarios import deployed, small, under
from simulator.traces import Trace

DATA: dict[str, tuple[Lengths, Lengths]] = {
    "sharegpt": (scenarios.SHAREGPT_PROMPT, scenarios.SHAREGPT_OUTPUT),
    "alpaca": (scenarios.ALPACA_PROMPT, scenarios.ALPACA_OUTPUT),
    "longbench": (scenarios.LONGBENCH_PROMPT, scenarios.LONGBENCH_OUTPUT),
}
DEFAULT_REPLICAS = 2


class Parser(argparse.ArgumentParser):
    """What is wrong on the command line is one line, as all that is wrong."""

    def error(self, message: str) -> NoReturn:
        """Raises `ConfigError`."""
        raise ConfigError(message)


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """What was said by name; None: nothing. `counts`: replicas by role. `link_gbit_s`: each way, of each host."""

    counts: dict[str, int] = {}
    replicas: int | None = None
    layout: str | None = None
    policy: str | None = None
    model: str | None = None
    hardware: str | None = None
    tp: int | None = None
    pp: int | None = None
    cost_file: str | None = None
    link_gbit_s: float | None = None
    data: str | None = None
    trace: str | None = None
    rate: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    duration_s: float | None = None
    seed: int | None = None


def scenario_of(layers: Sequence[dict[str, Any]], asked: Asked) -> Scenario:
    """The run that files and options describe. Raises `ConfigError` naming what is unknown or wrong, also where no
    replica has room for the usual request."""
    settings = Settings([{name: table for name, table in layer.items() if name != "sweep"} for layer in layers])
    scenario = _base(settings, with_replicas(settings.table("simulate")), asked)
    scenario = _machines(scenario, asked)
    scenario = _layout(scenario, asked)
    scenario = _workload(scenario, asked)
    changes = {name: getattr(asked, name) for name in ("duration_s", "seed") if getattr(asked, name) is not None}
    scenario = msgspec.structs.replace(scenario, **changes)
    _check_targets(scenario)
    if asked.rate is not None:
        scenario = at_rate(scenario, asked.rate)
    check_room(scenario)
    return scenario


def check_target(option: str, path: Path | None) -> None:
    """Raises `ConfigError` when no file can be made there."""
    if path is None:
        return
    try:
        if not path.parent.is_dir():
            raise ConfigError(f"{option}: there is no folder {path.parent}", param=option)
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ConfigError(f"{option}: {path} cannot be written", param=option)
    except (OSError, ValueError) as error:  # too long, or no path at all
        raise ConfigError(f"{option}: {getattr(error, 'strerror', error)}", param=option) from error


def _base(settings: Settings, given: dict[str, Any], asked: Asked) -> Scenario:
    counts = {role: count for role, count in asked.counts.items() if count}
    if min(asked.counts.values(), default=0) < 0:
        raise ConfigError("the number of replicas must not be negative", param="--alternating")
    if counts and "fleet" in given:
        raise ConfigError("replicas are counted on the command line and in [[simulate.fleet]]", param="simulate.fleet")
    cores: dict[str, dict[str, Any]] = {name: settings.table(name) for name in ("scheduling", "cluster")}
    build(ReplicaCoreConfig, [cores["scheduling"]])  # so that an error names the section as it was written
    build(ClusterCoreConfig, [cores["cluster"]])
    slo = build(Slo, [settings.table("slo")]) if settings.table("slo") else None
    if "fleet" in given:
        scenario = build(Scenario, [given, cores])
    else:
        usual = small(slo=slo, **(counts or {Role.ALTERNATING.value: DEFAULT_REPLICAS}))  # type: ignore[arg-type]
        scenario = build(Scenario, [msgspec.to_builtins(usual), given, cores])
    return scenario if slo is None or "classes" in given.get("workload", {}) else _with_slo(scenario, slo)


def _machines(scenario: Scenario, asked: Asked) -> Scenario:
    """Model and hardware by name, and the links."""
    changes: dict[str, Any] = {}
    if asked.cost_file is not None:
        if any(value is not None for value in (asked.model, asked.hardware, asked.tp, asked.pp)):
            raise ConfigError("--cost-file says what a step costs, and so does --model on --hardware", param="--model")
        changes = measured(asked.cost_file)
    elif asked.model is not None and asked.hardware is not None:
        changes = deployed(asked.model, asked.hardware, tp=_or_one(asked.tp), pp=_or_one(asked.pp))
    elif any(value is not None for value in (asked.model, asked.hardware, asked.tp, asked.pp)):
        raise ConfigError("a model is deployed on hardware: name --model and --hardware", param="--model")
    if asked.link_gbit_s is not None:
        bound("--link-rate", asked.link_gbit_s, most=MOST_BYTES_S / BYTES_PER_GBIT)
        changes["link_bytes_per_s"] = asked.link_gbit_s * BYTES_PER_GBIT
    fleet = tuple(msgspec.structs.replace(group, **changes) for group in scenario.fleet)
    return msgspec.structs.replace(scenario, fleet=fleet)


def _layout(scenario: Scenario, asked: Asked) -> Scenario:
    given = [name for name in ("layout", "policy") if getattr(asked, name) is not None]
    if any(asked.counts.values()):
        given.append("a number of replicas by role")
    if "layout" in given and len(given) > 1:
        raise ConfigError(f"{' and '.join(given)} exclude each other: each says which roles there are", param="layout")
    if asked.replicas is not None and asked.layout is None:
        told = f"as in --layout {asked.policy}" if asked.policy else "a policy is one too"
        raise ConfigError(f"--replicas is how many a --layout has; name one ({told})", param="--replicas")
    if asked.layout is not None:
        return laid_out(scenario, asked.layout, asked.replicas)
    return scenario if asked.policy is None else under(scenario, asked.policy)


def _workload(scenario: Scenario, asked: Asked) -> Scenario:
    changes: dict[str, Any] = {}
    if asked.data is not None and asked.trace is not None:
        raise ConfigError("--data and --trace exclude each other: both say how long prompts are", param="--trace")
    if asked.data is not None:
        if asked.data not in DATA:
            raise ConfigError(f"unknown data set {asked.data!r}; there are {', '.join(DATA)}", param="--data")
        changes["prompt"], changes["output"] = DATA[asked.data]
    if asked.trace is not None:
        changes["trace"] = Trace(path=asked.trace)
    if asked.ttft_s is not None or asked.tpot_s is not None:
        targets = {"ttft_s": asked.ttft_s, "tpot_s": asked.tpot_s}
        given = {name: value for name, value in targets.items() if value is not None}
        changes["classes"] = tuple(
            msgspec.structs.replace(kind, slo=msgspec.structs.replace(kind.slo, **given))
            for kind in scenario.workload.classes
        )
    scenario = msgspec.structs.replace(scenario, workload=msgspec.structs.replace(scenario.workload, **changes))
    if scenario.workload.trace is not None:
        next(scenario.workload.trace.rows())  # so that one that cannot be read is refused now
    return scenario


def _with_slo(scenario: Scenario, slo: Slo) -> Scenario:
    classes = tuple(msgspec.structs.replace(kind, slo=slo) for kind in scenario.workload.classes)
    workload = msgspec.structs.replace(scenario.workload, classes=classes)
    return msgspec.structs.replace(scenario, workload=workload)


def _check_targets(scenario: Scenario) -> None:
    for kind in scenario.workload.classes:
        for name in kind.slo.__struct_fields__:
            if not 0.0 < getattr(kind.slo, name) < math.inf:
                raise ConfigError(f"slo.{name} must be a positive number of seconds", param=f"slo.{name}")


def _or_one(number: int | None) -> int:
    return 1 if number is None else number
