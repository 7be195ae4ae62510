"""What the chart writes into the ConfigMap is what the processes read: the same structs, for every values file."""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cli.schema import settings_schema
from cli.settings import Settings
from contracts.phase import Role
from k8s.config import KubernetesConfig
from k8s.labels import COMPONENT_LABEL, INSTANCE_LABEL, NAME_LABEL

CHART = Path(__file__).resolve().parents[3] / "k8s" / "chart"
SECRET = "s" * 40
OURS: dict[str, set[str]] = {
    "slo": set(),
    "engine": {"model"},
    "scheduling": set(),
    "cluster": set(),
    "transfer": {"port", "secret", "tls_cert", "tls_key", "tls_ca"},
    "replica": {"replica_id", "host", "port", "health_port", "role", "engine", "core", "transfer", "control_secret"}
    | {"parent_pid"},
    "router": {
        "model",
        "port",
        "served_names",
        "discovery",
        "replicas",
        "replicas_file",
        "slo",
        "cluster",
        "shard",
        "shards",
    }
    | {"tls_cert", "tls_key", "admin_token", "api_keys", "control_secret"},
    "kubernetes": {"kubeconfig", "namespace", "selector", "port_name", "label_roles", "election", "scaling"},
}
"""Settings that the chart writes itself, or that are secrets: `settings` in the values cannot name them."""


def files(documents: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    (found,) = [one for one in documents if one["kind"] == "ConfigMap" and "router.toml" in one["data"]]
    return {name: tomllib.loads(text) for name, text in found["data"].items()}


def test_router_and_replicas_start_with_the_rendered_settings(
    charted: Any, ready_made: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for variable in ("PHASESERVE_FLEET_SECRET", "PHASESERVE_CONTROL_SECRET"):
        monkeypatch.setenv(variable, SECRET)
    rendered = files(charted.documents(ready_made=ready_made))
    router = rendered.pop("router.toml")
    settings = Settings([router])
    kubernetes = msgspec.convert(settings.table("kubernetes"), KubernetesConfig)
    config = settings.router()
    assert config.discovery == "kubernetes"
    assert (config.host, config.port) == ("0.0.0.0", 8000)
    assert kubernetes.namespace == "serving"
    assert set(kubernetes.selector.split(",")) == {
        f"{NAME_LABEL}=phaseserve",
        f"{COMPONENT_LABEL}=replica",
        f"{INSTANCE_LABEL}=demo",
    }
    assert kubernetes.election.enabled
    assert rendered, "no pool"
    for name, tables in rendered.items():
        role = Role(name.removesuffix(".toml"))
        replica = Settings([tables]).replica(replica_id="demo-0", role=role, fixed={"host": "10.0.0.2"})
        assert (replica.port, replica.transfer.port, replica.health_port) == (7000, 7001, 7002)
        assert replica.engine.model == config.model
        assert replica.core.admission == config.cluster.admission
        assert replica.roles_may_change == config.cluster.planner.enabled


def test_everything_on_is_read_too(charted: Any, everything: dict[str, Any]) -> None:
    tables = {"cluster": {"max_gap_s": 0.5, "fairness": {"weights": {"a key": 2.0}}, "planner": {"enabled": True}}}
    pools = {"decode": {"settings": {"transfer": {"ucx": {"fabric": "roce"}}, "replica": {"roles_may_change": False}}}}
    values = everything | {"settings": tables}
    values["pools"] = {name: pool | pools.get(name, {}) for name, pool in values["pools"].items()}
    rendered = files(charted.documents(values))
    router = rendered["router.toml"]
    settings = Settings([router])
    kubernetes = msgspec.convert(settings.table("kubernetes"), KubernetesConfig)
    assert [pool.workload for pool in kubernetes.scaling.pools] == ["demo-alternating"]
    config = settings.router()
    assert config.cluster.fairness.weights == {"a key": 2.0}
    assert config.tls_cert.startswith("/etc/phaseserve/router-tls/")
    for name, tables in rendered.items():
        if name == "router.toml":
            continue
        role = Role(name.removesuffix(".toml"))
        secret = {"transfer": {"secret": SECRET}}
        replica = Settings([tables, secret]).replica(replica_id="x", role=role)
        assert replica.core.max_gap_s == config.cluster.max_gap_s == 0.5
        assert replica.transfer.tls_ca == "/etc/phaseserve/data-tls/ca.crt"
        assert (replica.transfer.ucx.fabric == "roce") == (role is Role.DECODE)
        assert replica.roles_may_change != (role is Role.DECODE)


def test_a_change_for_the_router_restarts_no_replica(charted: Any, workloads: Any) -> None:
    def marks(values: dict[str, Any]) -> dict[str, str]:
        found = workloads(charted.documents(values))
        return {
            name: one["spec"]["template"]["metadata"]["annotations"]["phaseserve.dev/settings"]
            for name, one in found.items()
        }

    before = marks({})
    router = marks({"settings": {"router": {"silence_s": 4.0}, "cluster": {"max_pending": 9}}})
    both = marks({"settings": {"scheduling": {"max_gap_s": 0.7}}})
    assert before["demo-router"] != router["demo-router"]
    assert before["demo-alternating"] == router["demo-alternating"]
    assert before["demo-alternating"] != both["demo-alternating"]
    assert before["demo-router"] != both["demo-router"], "the router plans windows as replicas cut them"


def test_threads_follow_the_cpus_asked_for(charted: Any) -> None:
    pools: dict[str, Any] = {
        "mixed": {"replicas": 1, "resources": {"requests": {"cpu": "2500m"}}},
        "prefill": {"replicas": 1},
    }
    pools["prefill"]["gpu"] = {"count": 1}
    rendered = files(charted.documents({"pools": pools}))
    assert rendered["alternating.toml"]["engine"]["threads"] == 2
    assert rendered["mixed.toml"]["engine"]["threads"] == 3
    assert "engine" not in rendered["prefill.toml"], "a GPU's host threads are torch's to choose"


def _expected_schema() -> dict[str, Any]:
    schema: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())
    settings, definitions = settings_schema()
    settings["properties"] = {name: one for name, one in settings["properties"].items() if name in {*OURS, "admission"}}
    kept = {name: one for name, one in schema["$defs"].items() if not name.startswith(("settings.", "chart."))}
    for section, names in OURS.items():
        definition = definitions[settings["properties"][section]["$ref"].removeprefix("#/$defs/")]
        definition["properties"] = {key: one for key, one in definition["properties"].items() if key not in names}
    schema["$defs"] = {**kept, "chart.settings": settings, **dict(sorted(definitions.items()))}
    return schema


def test_the_values_schema_knows_every_setting() -> None:
    """`make manifests` writes it anew from the configs."""
    expected = json.dumps(_expected_schema(), indent=1) + "\n"
    file = CHART / "values.schema.json"
    if os.environ.get("PHASESERVE_REFRESH"):
        file.write_text(expected)
    assert file.read_text() == expected, "the settings changed: run `make manifests`"
