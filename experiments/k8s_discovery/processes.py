"""The processes of these measurements: API server, stand-ins for replicas, routers; and what is told to them."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from experiments.k8s_discovery.replicas import PORT

ROOT = Path(__file__).parents[2]
SLICES = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices"
PER_SLICE = 100
JOIN_S = 120.0


def host(number: int) -> str:
    """A loopback address of its own for each."""
    return f"127.78.{number // 250}.{number % 250 + 1}"


@contextmanager
def running(*words: str, log: Path) -> Iterator[subprocess.Popen[str]]:
    """A Python process from this checkout that prints a line once it serves."""
    with log.open("w") as out:
        process = subprocess.Popen([sys.executable, *words], cwd=ROOT, stdout=subprocess.PIPE, stderr=out, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.wait(10)


def first_line(process: subprocess.Popen[str]) -> str:
    """What it says when it serves."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def endpoint(number: int) -> dict[str, object]:
    """One ready pod, with as much about it as the controller says."""
    return {
        "addresses": [host(number)],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "nodeName": f"node-{number // 8}",
        "targetRef": {"kind": "Pod", "name": f"pool-{number}", "namespace": "default", "uid": f"{number:036d}"},
    }


def publish(url: str, first: int, last: int) -> None:
    """Endpoints of these numbers, in slices as the controller makes them."""
    for start in range(first, last, PER_SLICE):
        names = range(start, min(start + PER_SLICE, last))
        endpoints = [endpoint(number) for number in names]
        labels = {"app.kubernetes.io/name": "phaseserve", "app.kubernetes.io/component": "replica"}
        body = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "addressType": "IPv4"}
        ports = [{"name": "control", "port": PORT, "protocol": "TCP"}]
        metadata = {"name": f"pool-{start}", "labels": labels}
        made = {**body, "metadata": metadata, "endpoints": endpoints, "ports": ports}
        httpx.post(url + SLICES, json=made).raise_for_status()


def joined(port: int) -> int:
    """Replicas that the router shows."""
    try:
        return len(httpx.get(f"http://127.0.0.1:{port}/fleet", timeout=20).json()["replicas"])
    except httpx.TransportError:
        return 0


def write_kubeconfig(folder: Path, url: str) -> Path:
    """Plain HTTP on loopback."""
    document = {
        "current-context": "x",
        "clusters": [{"name": "c", "cluster": {"server": url}}],
        "users": [],
        "contexts": [{"name": "x", "context": {"cluster": "c"}}],
    }
    path = folder / "kubeconfig"
    path.write_text(json.dumps(document))
    return path


def await_joined(port: int, number: int) -> None:
    """Until the router on this port shows so many replicas. Raises `TimeoutError`."""
    ends_s = time.monotonic() + JOIN_S
    while joined(port) != number:
        if time.monotonic() > ends_s:
            raise TimeoutError(f"{joined(port)} replicas are joined, not {number}")
        time.sleep(0.02)


def router_words(model: str, port: int, kubeconfig: Path) -> tuple[str, ...]:
    """A router that finds its replicas there; the pods whose roles it could write on are not."""
    words = ("-m", "cli", "router", "--model", model, "--port", str(port), "--discovery", "kubernetes")
    return (*words, "--set", f"kubernetes.kubeconfig={kubeconfig}", "--set", "kubernetes.label_roles=false")
