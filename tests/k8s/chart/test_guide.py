"""The operator's guide (k8s/README.md): every command in it is run, in its order, against an API server and a real
router with two replicas. What needs a node or an image builder is listed, and at least names things that exist."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[3]
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


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def start(words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    program = [sys.executable, "-m", "cli", *words]
    return subprocess.Popen(program, cwd=ROOT, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


@pytest.fixture
def served(tmp_path: Path) -> Iterator[str]:
    """A router with the replicas of the guide's release, as the port-forward would reach them."""
    router_port, *ports = (free_port() for _ in range(3))
    environment = {**os.environ, "PHASESERVE_ADMIN_TOKEN": "0123456789abcdef0123", "PHASESERVE_FLEET_SECRET": "f" * 40}
    with contextlib.ExitStack() as stack:
        for number, port in enumerate(ports):
            words = ["replica", "--role", "alternating", "--engine", "fake", "--port", str(port)]
            words += ["--id", f"chat-alternating-{number}", "--set", "replica.roles_may_change=true"]
            words += ["--set", "replica.fake.eos_every=8"]
            stack.callback(_end, start(words, environment))
        words = ["router", "--port", str(router_port)]
        words += [word for port in ports for word in ("--replica", f"tcp://127.0.0.1:{port}")]
        stack.callback(_end, start(words, environment))
        url = f"http://127.0.0.1:{router_port}"
        deadline = time.monotonic() + SHORT_S
        while True:
            assert time.monotonic() < deadline, "the router is not ready"
            with contextlib.suppress(httpx.TransportError):
                if len(httpx.get(f"{url}/fleet", timeout=5).json().get("replicas", [])) == len(ports):
                    break
            time.sleep(0.1)
        yield url


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Path]:
    """An API server that asks for no token (kubectl sends none over plain HTTP), as a kubeconfig."""
    program = [sys.executable, "-m", "tests.k8s.apiserver", "--port", "0"]
    with subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            url = process.stdout.readline().split()[1]
            names = {"clusters": [{"name": "c", "cluster": {"server": url}}]}
            names["contexts"] = [{"name": "c", "context": {"cluster": "c", "user": ""}}]
            file = tmp_path / "kubeconfig"
            file.write_text(json.dumps({"current-context": "c", **names}))
            yield file
        finally:
            process.kill()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait(10)


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


def test_every_command_of_the_guide(charted: Any, kubectl: Path, cluster: Path, served: str, tmp_path: Path) -> None:
    for name in ("helm", "kubectl"):
        (tmp_path / name).symlink_to(charted.binary.parent / name)
    environment = charted.environment | {
        "PATH": f"{tmp_path}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "KUBECONFIG": str(cluster),
        "HOME": str(tmp_path),
    }
    ran = 0
    for command in commands():
        if any(command.startswith(prefix) for prefix in NEEDS_MORE):
            checked(command, _objects(environment))
            continue
        text = command.replace("http://127.0.0.1:8000", served)
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
    fleet = httpx.get(f"{served}/fleet", timeout=5).json()["replicas"]
    assert [one["wanted_role"] for one in fleet if one["replica_id"] == "chat-alternating-0"] == ["mixed"]
    subprocess.run(["helm", "uninstall", "chat", "-n", "serving"], check=True, env=environment, capture_output=True)


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
