"""What a simulated replica is, in other words than numbers: a model on hardware, or the file of a profile.

[[simulate.fleet]]
role = "mixed"
deployment = {model = "codellama2-34b", hardware = "l20", tp = 4}     # or a .toml of one's own for either
# or
cost_file = "cost.json"            # written by `phaseserve profile`; if with neighbours, replicas share a machine

What is said beside it (noise, num_blocks ...) wins.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from cli.overlay import build
from contracts.errors import ConfigError
from simulator.cost_file import read_cost_file
from simulator.deployment import Deployment
from simulator.scenarios import deployed

_MACHINE = "the one that was profiled"
_OPTIONS = ("model", "hardware", "tp", "pp", "dtype", "kv_dtype")


def measured(path: str) -> dict[str, Any]:
    """Settings of `simulator.scenario.Group` from a profile's file. With a busy neighbour measured, all replicas share
    one machine. Raises `ConfigError`."""
    found = read_cost_file(Path(path)).of_group()
    return {**found, "machine": _MACHINE if found["crowded"] is not None else ""}


def with_replicas(simulate: dict[str, Any]) -> dict[str, Any]:
    """The section with `deployment` and `cost_file` of each group replaced by what they stand for."""
    groups = simulate.get("fleet")
    if not isinstance(groups, list):
        return simulate
    return {**simulate, "fleet": [_with_replica(group) for group in groups]}


def _with_replica(group: Any) -> Any:
    if not isinstance(group, dict) or not {"deployment", "cost_file"} & set(group):
        return group
    rest = {key: value for key, value in group.items() if key not in ("deployment", "cost_file")}
    if "deployment" in group and "cost_file" in group:
        raise ConfigError("fleet: say deployment or cost_file, not both", param="simulate.fleet")
    if "cost_file" in group:
        return {**_measured(group["cost_file"]), **rest}
    table = group["deployment"]
    if not isinstance(table, dict) or set(table) - set(_OPTIONS) or not {"model", "hardware"} <= set(table):
        names = ", ".join(_OPTIONS)
        raise ConfigError(f"fleet.deployment is a table of {names}; the first two must be there", param="deployment")
    return {**_deployed(table), **rest}


def _deployed(table: dict[str, Any]) -> dict[str, Any]:
    asked = build(Deployment, [table])  # so that a wrong type is named
    names = {name: table[name] for name in _OPTIONS if name in table}
    assert asked.num_blocks
    found: dict[str, Any] = msgspec.to_builtins(deployed(**names))
    return found


def _measured(path: Any) -> dict[str, Any]:
    if not isinstance(path, str):
        raise ConfigError("fleet.cost_file must be the path of a file", param="cost_file")
    found: dict[str, Any] = msgspec.to_builtins(measured(path))
    return found
