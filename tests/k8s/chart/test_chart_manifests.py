"""k8s/manifests: every ready-made values file as plain objects, for whoever does without Helm. Always current."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import yaml

K8S = Path(__file__).resolve().parents[3] / "k8s"
RELEASE = NAMESPACE = "phaseserve"
FILES = sorted(path.stem for path in (K8S / "values").glob("*.yaml"))
HEADER = """\
# Rendered from ../chart with ../values/{name}.yaml; `make manifests` writes it anew. Before it is applied:
#   kubectl create namespace {namespace}
#   kubectl -n {namespace} create secret generic phaseserve-secrets \\
#     --from-literal=fleet-secret="$(openssl rand -hex 20)" \\
#     --from-literal=control-secret="$(openssl rand -hex 20)" \\
#     --from-literal=admin-token="$(openssl rand -hex 20)"
#   kubectl -n {namespace} apply -f {name}.yaml
"""


def rendered(charted: Any, name: str) -> str:
    values = {"secrets": {"existing": "phaseserve-secrets"}}
    text: str = charted.text(values, ready_made=name, release=RELEASE, namespace=NAMESPACE)
    parts = [part for part in text.split("\n---\n") if "helm.sh/hook" not in part]
    lines = [line.rstrip() for line in "\n---\n".join(parts).splitlines() if not line.startswith("# Source: ")]
    body = "\n".join(line for line in lines if "managed-by: Helm" not in line and line)
    return HEADER.format(name=name, namespace=NAMESPACE) + body + "\n"


def test_there_is_one_for_each_values_file() -> None:
    assert {path.stem for path in (K8S / "manifests").glob("*.yaml")} == set(FILES)


@pytest.mark.parametrize("name", FILES)
def test_manifests_are_current(charted: Any, name: str) -> None:
    expected = rendered(charted, name)
    file = K8S / "manifests" / f"{name}.yaml"
    if os.environ.get("PHASESERVE_REFRESH"):
        file.write_text(expected)
    assert file.read_text() == expected, "the chart changed: run `make manifests`"
    for document in yaml.safe_load_all(expected):
        assert document["metadata"]["name"], "every part is an object"
        assert document["kind"] != "Secret"
