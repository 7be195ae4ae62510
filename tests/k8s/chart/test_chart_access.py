"""Who may do what: RBAC, PodSecurity, network."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from k8s.access import NEEDED, PATCH_POD, Access, Feature, needed_for

RESTRICTED_VOLUMES = {"configMap", "secret", "emptyDir", "persistentVolumeClaim", "image", "projected", "downwardAPI"}


def granted(documents: list[dict[str, Any]]) -> frozenset[Access]:
    (role,) = [one for one in documents if one["kind"] == "Role"]
    found: list[tuple[str, str, str]] = []
    for rule in role["rules"]:
        assert "*" not in {*rule["apiGroups"], *rule["resources"], *rule["verbs"]}
        found += itertools.product(rule["apiGroups"], rule["resources"], rule["verbs"])
    return frozenset(Access(*triple) for triple in found)


def test_the_router_may_do_what_it_does_and_nothing_else(charted: Any) -> None:
    plain = granted(charted.documents({"kubernetes": {"labelRoles": False}}))
    assert plain == needed_for(Feature.DISCOVERY, Feature.ELECTION)
    roles = granted(charted.documents())
    assert roles == needed_for(Feature.DISCOVERY, Feature.ELECTION, Feature.ROLES)
    for kind, other in (("StatefulSet", "deployments"), ("Deployment", "statefulsets")):
        planner = {"pools": {"alternating": {"kind": kind, "scaling": {"by": "planner"}}}}
        wanted = frozenset(one for one in NEEDED if not one.resource.startswith(other))
        assert granted(charted.documents(planner)) == wanted
        unlabelled = granted(charted.documents({**planner, "kubernetes": {"labelRoles": False}}))
        assert unlabelled == wanted - ({PATCH_POD} if kind == "StatefulSet" else set()), (
            "only a Deployment's are marked"
        )


def test_scales_and_the_lease_are_named(charted: Any) -> None:
    documents = charted.documents({"pools": {"alternating": {"scaling": {"by": "planner"}}, "mixed": {"replicas": 2}}})
    (role,) = [one for one in documents if one["kind"] == "Role"]
    named = {rule["resources"][0]: rule["resourceNames"] for rule in role["rules"] if "resourceNames" in rule}
    assert named == {"leases": ["demo-fleet"], "statefulsets/scale": ["demo-alternating"]}


def test_only_the_router_has_a_token(charted: Any, workloads: Any, of_kind: Any) -> None:
    documents = charted.documents(ready_made="mixed")
    for name, workload in workloads(documents).items():
        pod = workload["spec"]["template"]["spec"]
        assert pod["automountServiceAccountToken"] is (name == "demo-router")
        assert pod["serviceAccountName"] == ("demo-router" if name == "demo-router" else "demo-replica")
    (binding,) = of_kind(documents, "RoleBinding").values()
    assert [subject["name"] for subject in binding["subjects"]] == ["demo-router"]
    assert not of_kind(documents, "ClusterRole")


def violations(pod: dict[str, Any]) -> list[str]:
    """Of PodSecurity `restricted` (Kubernetes' own list), and of a read-only root."""
    found = []
    security = pod["securityContext"]
    if pod.get("hostNetwork") or pod.get("hostPID") or pod.get("hostIPC"):
        found.append("host namespace")
    if security.get("seccompProfile", {}).get("type") != "RuntimeDefault":
        found.append("seccomp")
    if not security.get("runAsNonRoot") or security.get("runAsUser", 0) == 0:
        found.append("root")
    found += [
        f"volume {one['name']}"
        for one in pod.get("volumes", [])
        if not RESTRICTED_VOLUMES & set(one) or "hostPath" in one
    ]
    for container in [*pod.get("initContainers", []), *pod["containers"]]:
        own = container["securityContext"]
        if own.get("allowPrivilegeEscalation") is not False:
            found.append("privilege escalation")
        if own.get("capabilities", {}).get("drop") != ["ALL"] or own["capabilities"].get("add"):
            found.append("capabilities")
        if own.get("readOnlyRootFilesystem") is not True:
            found.append("writable root")
        if "hostPort" in str(container.get("ports", "")):
            found.append("host port")
    return found


def all_pods(documents: list[dict[str, Any]]) -> list[dict[str, Any]]:
    templates = [one["spec"]["template"]["spec"] for one in documents if one["kind"] in ("Deployment", "StatefulSet")]
    return templates + [one["spec"] for one in documents if one["kind"] == "Pod"]


def test_pods_are_restricted(charted: Any, ready_made: str | None) -> None:
    locked = {"replica": {"rdma": {"ipcLock": False}}}  # the one thing that asks for more, and says so
    found = all_pods(charted.documents(locked, ready_made=ready_made))
    assert len(found) >= 3
    for pod in found:
        assert not violations(pod)


def test_rdma_asks_for_locked_memory_and_nothing_else(charted: Any, workloads: Any) -> None:
    found = workloads(charted.documents(ready_made="rdma-disaggregated"))
    for name, workload in found.items():
        pod = workload["spec"]["template"]["spec"]
        if name == "demo-router":
            assert not violations(pod)
            continue
        assert violations(pod) == ["privilege escalation", "capabilities"]
        container = pod["containers"][0]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}
        assert container["command"][0].endswith("python-ipc-lock"), "the one interpreter that may use it"
        assert container["resources"]["limits"]["rdma/hca_shared_devices_a"] == "1"
        assert workload["spec"]["template"]["metadata"]["annotations"]["k8s.v1.cni.cncf.io/networks"] == "rdma-network"


@pytest.mark.parametrize("source", ["builtin", "pvc", "image", "download"])
def test_model_sources(charted: Any, workloads: Any, of_kind: Any, source: str) -> None:
    model: dict[str, Any] = {"name": "/models/a", "source": source, "sizeGiB": 3}
    model |= {"image": {"reference": "models/a:1"}, "download": {"command": ["fetch"], "secret": "token"}}
    documents = charted.documents({"model": model})
    for workload in workloads(documents).values():
        pod = workload["spec"]["template"]["spec"]
        volumes = {one["name"]: one for one in pod["volumes"]}
        mounts = {one["name"]: one for one in pod["containers"][0]["volumeMounts"]}
        assert ("model" in volumes) == ("model" in mounts) == (source != "builtin")
        if source != "builtin":
            assert mounts["model"]["readOnly"] is True
        assert ("initContainers" in pod) == (source == "download")
        assert not violations(pod)
    assert len(of_kind(documents, "PersistentVolumeClaim")) == (source == "pvc")


def test_network_policies(charted: Any, of_kind: Any) -> None:
    documents = charted.documents(ready_made="mixed")
    policies = of_kind(documents, "NetworkPolicy")
    replica = policies["demo-replica"]["spec"]
    assert replica["policyTypes"] == ["Ingress", "Egress"]
    control, data = replica["ingress"]
    labels = "app.kubernetes.io/component"
    assert control["from"][0]["podSelector"]["matchLabels"][labels] == "router"
    assert [port["port"] for port in control["ports"]] == [7000]
    assert data["from"][0]["podSelector"]["matchLabels"][labels] == "replica"
    assert [port["port"] for port in data["ports"]] == [7001, 32768]
    assert all(peer.get("to") for peer in replica["egress"] if {port["port"] for port in peer["ports"]} != {53})
    for policy in policies.values():
        selector = policy["spec"]["podSelector"]["matchLabels"]
        assert selector["app.kubernetes.io/instance"] == "demo", "only this release's pods"
    clients = [{"namespaceSelector": {"matchLabels": {"name": "apps"}}}]
    only = of_kind(charted.documents({"networkPolicy": {"clients": clients}}), "NetworkPolicy")["demo-router"]
    *given, tester = only["spec"]["ingress"][0]["from"]
    assert given == clients
    assert (
        tester["podSelector"]["matchLabels"].items() >= {labels: "test", "app.kubernetes.io/instance": "demo"}.items()
    )


def test_secrets_are_never_in_the_settings(charted: Any, of_kind: Any) -> None:
    names = ("fleetSecret", "controlSecret", "adminToken")
    secrets = {name: f"secret-of-{name}-0123456789" for name in names} | {"apiKeys": ["key-0123456789-0123"]}
    text = charted.text({"secrets": secrets})
    assert not [value for name in names for value in [secrets[name]] if str(value) in text]
    assert "key-0123456789-0123" not in text
    existing = of_kind(charted.documents({"secrets": {"existing": "mine"}}), "Secret")
    assert not existing
