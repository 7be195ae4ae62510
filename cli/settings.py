"""One file of settings for a whole deployment, and the config of each process that follows from it.

model = "smollm2-135m"
admission = "min"         scheduling.admission_rules: the same for replicas and router, never one without the other
[slo]         ttft_s, tpot_s
[engine]      engine.config.EngineConfig
[scheduling]  scheduling.config.ReplicaCoreConfig
[cluster]     scheduling.config.ClusterCoreConfig
[transfer]    kvtransfer.config.TransferConfig (transport, device, tls_cert, ...): how KV goes from replica to replica
[replica]     replica.config.ReplicaConfig (loop, kind, fake, host, ...)
[router]      router.config.RouterConfig (host, port, limits, ...)
[kubernetes]  k8s.config.KubernetesConfig (namespace, selector, election, scaling): with router.discovery = "kubernetes"
[simulate]    cli.simulate; nothing else looks at it
"""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import Any

from cli.overlay import build, merge, parse_assignment, read_toml
from contracts.control_secret import CONTROL_SECRET_VARIABLE
from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from replica.config import ReplicaConfig, with_secret
from router.config import ADMIN_TOKEN_VARIABLE, API_KEYS_VARIABLE, RouterConfig
from scheduling.admission_rules import parse_rule
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig

DEFAULT_MODEL = "smollm2-135m"
CORES = ("scheduling", "cluster")
WINDOW_SETTINGS = ("window_chunking", "max_gap_s")
"""The router plans windows as the replicas cut them."""
SECTIONS = ("slo", "engine", "scheduling", "cluster", "transfer", "replica", "router", "kubernetes", "simulate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options by which every process takes its settings."""
    parser.add_argument("--model", help=f"embedded name, directory or GGUF file (default {DEFAULT_MODEL})")
    parser.add_argument("--config", type=Path, metavar="FILE", help="TOML file with the settings")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="one setting, e.g. slo.ttft_s=2")
    parser.add_argument("--quantization", choices=("none", "int8"), help="of the weights (default none)")
    parser.add_argument("--threads", type=int, help="CPU threads of each replica (default: divided evenly)")


def _check_targets(slo: Slo) -> None:
    """Every decision is made for these. Raises `ConfigError`: NaN would be true of no comparison."""
    for name in slo.__struct_fields__:
        if not 0.0 < getattr(slo, name) < math.inf:
            raise ConfigError(f"slo.{name} must be a positive number of seconds", param=f"slo.{name}")


def _check_finite(value: Any, where: str) -> None:
    """Raises `ConfigError`: no setting can be endless or no number, and no replica's JSON configuration can say so."""
    if isinstance(value, dict):
        for name, inner in value.items():
            _check_finite(inner, f"{where}.{name}" if where else name)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where} must be a finite number, but is {value}", param=where)


def _router_secrets() -> dict[str, Any]:
    """What the environment holds of them: command lines can be read by everybody on the machine."""
    names = {"admin_token": ADMIN_TOKEN_VARIABLE, "control_secret": CONTROL_SECRET_VARIABLE}
    found: dict[str, Any] = {name: os.environ[variable] for name, variable in names.items() if os.environ.get(variable)}
    if keys := os.environ.get(API_KEYS_VARIABLE):
        found["api_keys"] = [key.strip() for key in keys.split(",") if key.strip()]
        if not found["api_keys"]:
            raise ConfigError(
                f"there is no key in {API_KEYS_VARIABLE}: unset it if everybody may ask", param="api_keys"
            )
    return found


class Settings:
    """What file and command line say together. Raises `ConfigError` naming what is unknown or wrong."""

    def __init__(self, layers: list[dict[str, Any]]) -> None:
        self._tables: dict[str, Any] = {}
        for layer in layers:
            self._tables = merge(self._tables, layer)
        _check_finite(self._tables, "")
        for name, table in self._tables.items():
            if name not in {"model", "admission", *SECTIONS}:
                known = f"model, admission, {', '.join(SECTIONS)}"
                raise ConfigError(f"unknown section {name!r}; there are {known}", param=name)
            if name in SECTIONS and not isinstance(table, dict):
                raise ConfigError(f"{name} is a section, not a value", param=name)
        if not isinstance(self.model, str) or not self.model:
            raise ConfigError("model must be a name or a path", param="model")
        self._share_admission()
        for name in WINDOW_SETTINGS:
            self._share(name)

    @classmethod
    def from_arguments(cls, arguments: argparse.Namespace) -> Settings:
        """The file first, then `--set`, then the named options."""
        layers = [read_toml(arguments.config)] if arguments.config else []
        layers += [parse_assignment(text) for text in arguments.set]
        if arguments.model is not None:
            layers.append({"model": arguments.model})
        if arguments.quantization is not None:
            layers.append({"engine": {"quantization": arguments.quantization}})
        if arguments.threads is not None:
            layers.append({"engine": {"threads": arguments.threads}})
        return cls(layers)

    @property
    def model(self) -> str:
        """What is to be served."""
        name: str = self._tables.get("model", DEFAULT_MODEL)
        return name

    def _share_admission(self) -> None:
        """One admission rule for both cores, wherever it was written. Raises `ConfigError` where two were."""
        places = {"admission": self._tables.get("admission")}
        for section in CORES:
            places[f"{section}.admission"] = self.table(section).get("admission")
        given = {place: rule for place, rule in places.items() if rule is not None}
        if not given:
            return
        place, rule = next(iter(given.items()))
        if not isinstance(rule, str):
            raise ConfigError(f"{place} must be the name of a rule", param=place)
        parse_rule(rule)
        if any(other != rule for other in given.values()):
            told = ", ".join(f"{name} is {value!r}" for name, value in given.items())
            raise ConfigError(f"replicas and router must have one admission rule, but {told}", param=place)
        for section in CORES:
            self._tables[section] = merge(self.table(section), {"admission": rule})

    def _share(self, name: str) -> None:
        """One value for both cores, wherever it was written. Raises `ConfigError` where two were."""
        given = {section: self.table(section)[name] for section in CORES if name in self.table(section)}
        if len(set(map(str, given.values()))) > 1:
            told = ", ".join(f"{section}.{name} is {value!r}" for section, value in given.items())
            raise ConfigError(f"replicas and router must have one {name}, but {told}", param=f"cluster.{name}")
        for section in CORES if given else ():
            self._tables[section] = merge(self.table(section), {name: next(iter(given.values()))})

    def table(self, section: str) -> dict[str, Any]:
        """One section as it was written."""
        table: dict[str, Any] = self._tables.get(section, {})
        return table

    def replica(self, *, replica_id: str, role: Role, fixed: dict[str, Any] | None = None) -> ReplicaConfig:
        """The config of one replica process; `fixed` wins over everything."""
        build(ReplicaCoreConfig, [self.table("scheduling")])  # so that an error names the section as it was written
        layers = [
            {"engine": {"model": self.model}},
            {"engine": self.table("engine"), "core": self.table("scheduling"), "transfer": self.table("transfer")},
            self.table("replica"),
            {"replica_id": replica_id, "role": role.value},
            fixed or {},
        ]
        tables: dict[str, Any] = {}
        for layer in layers:
            tables = merge(tables, layer)
        return build(ReplicaConfig, [with_secret(tables)])

    def router(self, *, fixed: dict[str, Any] | None = None) -> RouterConfig:
        """The config of the router; `fixed` wins over everything."""
        build(ClusterCoreConfig, [self.table("cluster")])
        _check_targets(build(Slo, [self.table("slo")]))
        layers = [
            {"model": self.model, "slo": self.table("slo"), "cluster": self.table("cluster")},
            self.table("router"),
            _router_secrets(),
            fixed or {},
        ]
        return build(RouterConfig, layers)
