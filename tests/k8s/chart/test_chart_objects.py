"""Everything that the chart renders is valid: Helm's own lint, strict Kubernetes schemas, the CRDs' schemas."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest

HERE = Path(__file__).parent
CHART = HERE.parents[2] / "k8s" / "chart"
VALUES = CHART.parent / "values"
VERSIONS = ("1.37", "1.27")
"""The newest, and the oldest that the chart admits (Chart.yaml)."""

CUSTOM = ("monitoring.coreos.com", "keda.sh", "gateway.networking.k8s.io")
CRD_PACKAGES = ("prometheus-operator@6.0.0", "keda@2.0.0", "gateway-api@2.0.0")


def problems(documents: list[dict[str, Any]], version: str) -> list[str]:
    found = []
    for document in documents:
        if document["apiVersion"].split("/")[0] in CUSTOM:
            continue  # a kind that is unknown otherwise is an error, and raises
        try:
            kubernetes_validate.validate(document, version, strict=True)
        except kubernetes_validate.ValidationError as error:
            found.append(f"{document['kind']}/{document['metadata']['name']}: {list(error.path)} {error.message}")
    return found


def test_lint(charted: Any, ready_made: str | None) -> None:
    values = ["-f", str(VALUES / f"{ready_made}.yaml")] if ready_made else []
    done = charted.run("lint", "--strict", str(CHART), *values)
    assert done.returncode == 0, done.stdout
    assert "WARNING" not in done.stdout


def test_strict_schemas(charted: Any, ready_made: str | None) -> None:
    assert not problems(charted.documents(ready_made=ready_made), VERSIONS[0])


def test_strict_schemas_with_everything_on(charted: Any, everything: dict[str, Any]) -> None:
    assert not problems(charted.documents(everything), VERSIONS[0])
    for source, options in (("image", {"reference": "models/a:1"}), ("download", {"command": ["fetch"]})):
        everything["model"] = {"name": "/models/a", "source": source, source: options}
        assert not problems(charted.documents(everything), VERSIONS[0])


def test_the_oldest_kubernetes_knows_all_fields(charted: Any, everything: dict[str, Any]) -> None:
    assert f'kubeVersion: ">={VERSIONS[1]}.0-0"' in (CHART / "Chart.yaml").read_text()
    assert not problems(charted.documents(everything), VERSIONS[1])


def test_an_unknown_field_or_kind_is_found(charted: Any) -> None:
    """The check itself: it must not pass what it does not know."""
    (router,) = [one for one in charted.documents() if one["kind"] == "Deployment"]
    broken = json.loads(json.dumps(router))
    broken["spec"]["template"]["spec"]["terminationGracePeriod"] = 3
    assert problems([broken], VERSIONS[0])
    with pytest.raises(kubernetes_validate.SchemaNotFoundError):
        problems([{"apiVersion": "policy/v1beta1", "kind": "PodSecurityPolicy", "metadata": {}}], VERSIONS[0])


@pytest.fixture(scope="session")
def crd_models() -> Path:
    """The folder with the CRDs' schemas as JavaScript. Skips, saying why, where they cannot be had."""
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("no npm: custom resources are not checked against their CRDs")
    folder = Path.home() / ".cache" / "phaseserve-test-tools" / "crd-models"
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "node_modules" / "@kubernetes-models" / "gateway-api").is_dir():
        names = [f"@kubernetes-models/{package}" for package in CRD_PACKAGES]
        command = [npm, "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder), *names]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
        if done.returncode:
            pytest.skip(f"the CRDs' schemas cannot be had here: {done.stderr[-300:]}")
    return folder


def _crd_problems(folder: Path, objects: list[dict[str, Any]]) -> list[str]:
    command = ["node", str(HERE / "crd_check.mjs")]
    text = json.dumps(objects)
    done = subprocess.run(command, check=False, input=text, cwd=folder, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_custom_resources(charted: Any, everything: dict[str, Any], crd_models: Path) -> None:
    documents = charted.documents(everything) + charted.documents(ready_made="rdma-disaggregated")
    objects = [one for one in documents if one["apiVersion"].split("/")[0] in CUSTOM]
    assert {one["kind"] for one in objects} == {"ServiceMonitor", "PrometheusRule", "ScaledObject", "HTTPRoute"}
    assert not _crd_problems(crd_models, objects)
    broken = [{**one, "spec": {**one["spec"], next(iter(one["spec"])): 5}} for one in objects]
    found = {line.split(":")[0] for line in _crd_problems(crd_models, broken)}
    assert found == {f"{one['kind']}/{one['metadata']['name']}" for one in objects}, "the check finds what is wrong"


@pytest.mark.slow
def test_helm_3_renders_the_same(
    charted: Any, charted_3: Any, ready_made: str | None, everything: dict[str, Any]
) -> None:
    secrets = {"secrets": {"existing": "mine"}}
    for values in (secrets, everything | secrets):
        ours, theirs = (one.documents(values, ready_made=ready_made) for one in (charted, charted_3))
        order = [json.dumps(sorted(map(json.dumps, documents))) for documents in (ours, theirs)]
        assert order[0] == order[1]
    said = charted_3.refusal({"router": {"replcas": 2}})
    assert "replcas" in said
    done = charted_3.run("lint", "--strict", str(CHART))
    assert done.returncode == 0, done.stdout


def test_notes_tell_how_to_send_the_first_request(charted: Any, tmp_path: Path) -> None:
    file = tmp_path / "values.json"
    model = {"name": "/models/llama-3.1-8b", "source": "pvc"}
    file.write_text(json.dumps({"model": model, "router": {"service": {"port": 8080}}}))
    words = ["install", "chat", str(CHART), "--dry-run=client", "--namespace", "serving", "-f", str(file)]
    done = charted.run(*words)
    assert done.returncode == 0, done.stderr
    notes = done.stdout.split("NOTES:")[1]
    for told in ("port-forward service/chat-router 8000:8080", '"model": "llama-3.1-8b"', "-n serving", "chat-secrets"):
        assert told in notes
