"""The operator's guide (k8s/README.md): every command in it is run, in its order, against an API server and a real
router with two replicas. What needs a node or an image builder is listed, and at least names things that exist."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[4]
GUIDE = (ROOT / "k8s" / "README.md").read_text()
SHORT_S = 60
NEEDS_MORE = {
    "docker": "an image builder",
    "kubectl -n serving port-forward": "a node: a real router answers in its place",
    "kubectl -n serving logs": "a node",
    "kubectl -n serving rollout status": "controllers",
}
"""What is not run, by how the command begins, and what it would need."""


def commands() -> list[str]:
    """Those in the guide's shell blocks, with their continuation lines."""
    blocks = re.findall(r"^```sh\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    found: list[str] = []
    for line in "".join(blocks).splitlines():
        begins = found and not found[-1].endswith("\\") and found[-1].count("'") % 2 == 0
        if begins or not found:
            found.append(line)
        else:
            found[-1] += "\n" + line
    return found


def checked(command: str, listed: dict[str, Any]) -> None:
    """A command that cannot be run here names a workload, service or target that exists."""
    words = shlex.split(command.removesuffix("&"))
    if words[0] == "docker":
        targets = re.findall(r"AS (\S+)", (ROOT / "k8s" / "Dockerfile").read_text())
        assert words[1] == "push" or {words[words.index("--target") + 1]} <= set(targets)
        return
    (named,) = [word for word in words if re.fullmatch(r"(deployment|service)/[a-z-]+", word)]
    assert named in listed, named
    if "port-forward" in words:
        assert int(words[-1].split(":")[1]) == listed[named]["spec"]["ports"][0]["port"]


def test_every_command_of_the_guide(
    charted: Any, kubectl: Path, cluster: Path, run_release: Any, tmp_path: Path
) -> None:
    pools = {"alternating": {"replicas": 2}, "prefill": {"replicas": 0}, "decode": {"replicas": 0}}
    release = run_release(pools=pools)
    for name in ("helm", "kubectl"):
        (tmp_path / name).symlink_to(charted.binary.parent / name)
    environment = charted.environment | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster),
    }
    ran = 0
    for command in commands():
        if any(command.startswith(prefix) for prefix in NEEDS_MORE):
            checked(command, _objects(environment))
            continue
        text = command.replace("http://127.0.0.1:8000", release.url)
        if command.startswith("export PHASESERVE_ADMIN_TOKEN"):
            text = text.removeprefix("export ") + '; test -n "$PHASESERVE_ADMIN_TOKEN"'
        elif text.startswith("phaseserve fleet"):
            environment["PHASESERVE_ADMIN_TOKEN"] = "0123456789abcdef0123"
        text = text.replace("curl ", "curl --fail --silent --show-error ")
        done = subprocess.run(
            ["bash", "-e", "-c", text], check=False, cwd=ROOT, env=environment, capture_output=True, text=True,
            timeout=SHORT_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        assert "warning" not in done.stderr.lower(), done.stderr
        ran += 1
    assert ran >= 20
    fleet = httpx.get(f"{release.url}/fleet", timeout=5).json()["replicas"]
    assert [one["wanted_role"] for one in fleet if one["replica_id"] == "chat-alternating-0"] == ["mixed"]
    assert not _objects(environment), "uninstalled"


def _objects(environment: dict[str, str]) -> dict[str, Any]:
    command = ["kubectl", "-n", "serving", "get", "deployments,services", "-o", "json"]
    done = subprocess.run(command, check=False, env=environment, capture_output=True, text=True, timeout=SHORT_S)
    items = json.loads(done.stdout)["items"] if done.returncode == 0 else []
    return {f"{one['kind'].lower()}/{one['metadata']['name']}": one for one in items}


def test_helm_test_is_in_the_chart(charted: Any) -> None:
    assert "helm test chat --namespace serving" in GUIDE
    (pod,) = [one for one in charted.documents() if one["kind"] == "Pod"]
    assert pod["metadata"]["annotations"]["helm.sh/hook"] == "test"


def test_files_that_the_guide_names_exist() -> None:
    for name in re.findall(r"k8s/(?:values|manifests)/[\w.-]+", GUIDE):
        assert (ROOT / name).is_file(), name
    for name in re.findall(r"`([\w-]+\.yaml)`", GUIDE):
        assert (ROOT / "k8s" / "values" / name).is_file(), name
