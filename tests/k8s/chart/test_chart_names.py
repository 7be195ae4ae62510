"""Names and labels are legal, and differ, whatever release, override and model are called (K8S-11)."""

from __future__ import annotations

import re
from typing import Any

from k8s import labels

DNS_1035 = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?)?")
POD_SUFFIX = len("-0123456789-01234")
RELEASES = ("demo", "1.2.3", "a" * 53, "a" * 52 + "b", "llama-3.2", "x-router")
OVERRIDES = (
    "llama-3.2-3B_Instruct",
    "n" * 80,
    "n" * 79 + "m",
    "org/model:tag",
    "UPPER",
    "a" * 63 + "x",
    "a" * 63 + "y",
)
MODELS = ("llama-3.2-3B_Instruct", "m" * 80, "org/model:tag", "UPPER", "/models/-x-")


def names(documents: list[dict[str, Any]]) -> set[str]:
    found = set()
    for document in documents:
        name = document["metadata"]["name"]
        assert DNS_1035.fullmatch(name), name
        assert len(name) <= 63, name
        if document["kind"] in ("StatefulSet", "Deployment"):
            assert len(name) + POD_SUFFIX <= 63 + 6, "pods and their labels are named after it"
            assert len(name) <= 52, "the label controller-revision-hash holds it and eleven characters"
        found.add(f"{document['kind']}/{name}")
    return found


def all_labels(value: Any) -> list[tuple[str, str]]:
    if isinstance(value, list):
        return [pair for inner in value for pair in all_labels(inner)]
    if not isinstance(value, dict):
        return []
    own = [pair for key in ("labels", "matchLabels") for pair in (value.get(key) or {}).items()]
    return own + [pair for inner in value.values() for pair in all_labels(inner)]


def check_labels(documents: list[dict[str, Any]]) -> None:
    for name, value in all_labels(documents):
        assert LABEL.fullmatch(value), (name, value)
        assert len(value) <= 63, (name, value)


def test_any_release_and_any_override_gives_legal_names_k8s_11(charted: Any, everything: dict[str, Any]) -> None:
    taken: dict[str, str] = {}
    cases: list[tuple[str, dict[str, str]]] = [(release, {}) for release in RELEASES] + [
        ("demo", {"fullnameOverride": name}) for name in OVERRIDES
    ]
    for release, values in cases:
        documents = charted.documents(everything | values, release=release)
        check_labels(documents)
        for name in names(documents):
            who = f"{release} {values}"
            assert taken.setdefault(name, who) == who, f"{name} is made by {taken[name]} and by {who}"


WORDS = ("on", "null", "true", "123", "1e3", "0x1f")
NAMED = ("name", "namespace", "claimName", "secretName")


def test_names_that_yaml_reads_as_something_else_stay_names(charted: Any, everything: dict[str, Any]) -> None:
    """A namespace may be called 123, and a Secret null."""
    everything["secrets"] |= {"dataTls": "on", "routerTls": "123"}
    for word in WORDS:
        everything["secrets"]["existing"] = word
        everything["model"]["pvc"] = {"claim": word}
        found = named(charted.documents(everything, namespace=word, release=word))
        assert all(isinstance(name, str) for name in found), found
        assert word in found


def test_numbers_of_users_stay_whole(charted: Any, workloads: Any) -> None:
    """Helm holds numbers as floats: OpenShift's are above a million."""
    text = charted.text({"podSecurity": {"runAsUser": 1000660000, "fsGroup": 1000000}})
    assert "e+0" not in text
    assert text.count("runAsUser: 1000660000") >= 2


def named(value: Any) -> list[Any]:
    """What stands where a name is meant, in all of an object."""
    if isinstance(value, list):
        return [found for inner in value for found in named(inner)]
    if not isinstance(value, dict):
        return []
    own = [inner for key, inner in value.items() if key in NAMED] + (value.get("matchNames") or [])
    return own + [found for inner in value.values() for found in named(inner)]


def test_any_model_gives_legal_labels_k8s_11(charted: Any) -> None:
    seen = set()
    for model in MODELS:
        documents = charted.documents({"model": {"name": model}})
        check_labels(documents)
        seen.add(documents[0]["metadata"]["labels"]["phaseserve.dev/model"])
    assert len(seen) == len(MODELS)


def test_plain_names_stay_as_they_are(charted: Any, workloads: Any) -> None:
    assert set(workloads(charted.documents(release="chat"))) == {"chat-router", "chat-alternating"}


def test_labels_are_those_the_router_looks_for(charted: Any, workloads: Any, of_kind: Any) -> None:
    documents = charted.documents(ready_made="mixed")
    services = of_kind(documents, "Service")
    for name, workload in workloads(documents).items():
        pod = workload["spec"]["template"]["metadata"]["labels"]
        pool = name.removeprefix("demo-")
        if pool == "router":
            assert pod[labels.COMPONENT_LABEL] == labels.ROUTER
            continue
        wanted = {
            labels.NAME_LABEL: labels.NAME,
            labels.INSTANCE_LABEL: "demo",
            labels.COMPONENT_LABEL: labels.REPLICA,
            labels.POOL_LABEL: pool,
        }
        service = services[name]
        for found in (pod, service["metadata"]["labels"], service["spec"]["selector"]):
            assert wanted.items() <= found.items()
        assert pod[labels.ROLE_LABEL] == pool
        assert labels.ROLE_LABEL not in workload["spec"]["selector"]["matchLabels"], "a role changes while a pod lives"
        assert service["spec"]["clusterIP"] == "None"
        assert "publishNotReadyAddresses" not in service["spec"]
        assert labels.CONTROL_PORT in {port["name"] for port in service["spec"]["ports"]}
        container = workload["spec"]["template"]["spec"]["containers"][0]
        ours = dict(zip(container["args"][::2], container["args"][1::2], strict=True))
        assert (ours["--id"], ours["--host"], ours["--role"]) == ("$(POD_NAME)", "$(POD_IP)", pool)


def test_own_labels_are_added_and_never_replace_ours(charted: Any) -> None:
    values = {"labels": {"team": "a", "app.kubernetes.io/name": "other"}}
    for document in charted.documents(values):
        found = document["metadata"]["labels"]
        assert (found["team"], found["app.kubernetes.io/name"]) == ("a", "phaseserve")
