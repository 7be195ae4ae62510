"""Probes and grace periods of every pod, for every values file: K8S-1 and K8S-4 as sums over the rendered settings."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest

from replica.config import ReplicaConfig
from router.config import RouterConfig

Pod = dict[str, Any]


def pods(found: dict[str, dict[str, Any]]) -> dict[str, Pod]:
    return {name: one["spec"]["template"]["spec"] for name, one in found.items()}


def seconds_to_start(pod: Pod) -> int:
    probe = pod["containers"][0]["startupProbe"]
    return int(probe["failureThreshold"]) * int(probe["periodSeconds"])


def pre_stop_s(pod: Pod) -> int:
    command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    assert command[0] == "sleep"
    return int(command[1])


def drain_s(documents: list[dict[str, Any]], workload: str) -> float:
    """What the process of this workload is told, or its own default."""
    name = workload.removeprefix("demo-")
    (settings,) = [one["data"] for one in documents if one["kind"] == "ConfigMap" and "router.toml" in one["data"]]
    tables = tomllib.loads(settings[f"{name}.toml"])
    if name == "router":
        return float(tables["router"].get("drain_s", RouterConfig.drain_s))
    default = ReplicaConfig(replica_id="x").loop.drain_deadline_s
    return float(tables["replica"].get("loop", {}).get("drain_deadline_s", default))


def test_a_pod_may_take_as_long_to_start_as_its_model_needs_k8s_1(
    charted: Any, workloads: Any, ready_made: str | None
) -> None:
    for name, pod in pods(workloads(charted.documents(ready_made=ready_made))).items():
        assert seconds_to_start(pod) >= 600, name
        container = pod["containers"][0]
        assert "initialDelaySeconds" not in container["livenessProbe"], "the startup probe is what waits"


def test_a_large_model_from_a_slow_disk_gets_more_k8s_1(charted: Any, workloads: Any) -> None:
    large = {"model": {"name": "/models/a", "source": "pvc", "sizeGiB": 140, "readMiBPerSecond": 150}}
    for pod in pods(workloads(charted.documents(large))).values():
        assert seconds_to_start(pod) >= 3 * 140 * 1024 / 150
    more = {"model": {"minStartupSeconds": 7200}}
    for pod in pods(workloads(charted.documents(more))).values():
        assert seconds_to_start(pod) == 7200


def test_probes_ask_what_the_processes_answer(charted: Any, workloads: Any) -> None:
    for name, pod in pods(workloads(charted.documents(ready_made="mixed"))).items():
        container = pod["containers"][0]
        port = "http" if name == "demo-router" else "health"
        started = "live" if name == "demo-router" else "startup"
        assert port in {one["name"] for one in container["ports"]}
        for probe, path in (("startupProbe", started), ("livenessProbe", "live"), ("readinessProbe", "ready")):
            asked = container[probe]["httpGet"]
            assert (asked["path"], asked["port"]) == (f"/health/{path}", port)


@pytest.mark.parametrize("times", [(60, 30.5), (1200, 900)])
def test_a_drain_ends_within_the_grace_period_k8s_4(
    charted: Any, workloads: Any, ready_made: str | None, times: tuple[float, float]
) -> None:
    settings = {"router": {"drain_s": times[0]}, "replica": {"loop": {"drain_deadline_s": times[1]}}}
    for values in ({}, {"settings": settings, "preStopSeconds": 15}):
        documents = charted.documents(values, ready_made=ready_made)
        for name, pod in pods(workloads(documents)).items():
            needed = pre_stop_s(pod) + drain_s(documents, name)
            assert pod["terminationGracePeriodSeconds"] > needed, name
            if values:
                assert pre_stop_s(pod) == 15
                assert drain_s(documents, name) == times[name != "demo-router"]


def test_who_hangs_is_not_given_the_time_of_a_drain(charted: Any, workloads: Any, ready_made: str | None) -> None:
    documents = charted.documents({"preStopSeconds": 15}, ready_made=ready_made)
    for name, pod in pods(workloads(documents)).items():
        grace_s = pod["containers"][0]["livenessProbe"]["terminationGracePeriodSeconds"]
        assert 15 < grace_s <= 45, name
        assert grace_s < pod["terminationGracePeriodSeconds"], name


def test_a_pool_may_drain_longer_k8s_4(charted: Any, workloads: Any) -> None:
    own = {"replica": {"loop": {"drain_deadline_s": 1800}}}
    values = {"pools": {"prefill": {"replicas": 1, "settings": own}, "decode": {"replicas": 1}}}
    documents = charted.documents(values)
    found = pods(workloads(documents))
    assert found["demo-prefill"]["terminationGracePeriodSeconds"] > 1800
    assert found["demo-decode"]["terminationGracePeriodSeconds"] < 1800
    assert drain_s(documents, "demo-prefill") == 1800


def test_router_updates_never_take_one_away_before_another_is_ready(charted: Any, workloads: Any) -> None:
    router = workloads(charted.documents())["demo-router"]
    assert router["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    pool = {"kind": "Deployment", "updateSurge": 2}
    surge = workloads(charted.documents({"replica": pool}))["demo-alternating"]
    assert surge["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 2, "maxUnavailable": 0}
    none = workloads(charted.documents({"replica": pool | {"updateSurge": 0}}))["demo-alternating"]
    assert none["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}


GIVEN = {
    "controlSecret": {"demo-router", "demo-alternating"},
    "fleetSecret": {"demo-alternating"},
    "adminToken": {"demo-router"},
    "apiKeys": {"demo-router"},
}


@pytest.mark.parametrize("secret", GIVEN)
def test_pods_that_read_a_secret_are_replaced_when_it_changes(charted: Any, workloads: Any, secret: str) -> None:
    """Processes read them when they start: until then a withdrawn API key would go on to be taken."""

    def annotations(value: str, **more: str) -> dict[str, Any]:
        given: Any = [value] if secret == "apiKeys" else value
        found = workloads(charted.documents({"secrets": {secret: given, **more}}))
        return {name: one["spec"]["template"]["metadata"]["annotations"] for name, one in found.items()}

    before, after = annotations("0123456789-abcdef-1"), annotations("0123456789-abcdef-2")
    assert {name for name in before if before[name] != after[name]} == GIVEN[secret]
    assert annotations("0123456789-abcdef-1", existing="mine") == annotations("0123456789-abcdef-2", existing="mine")
