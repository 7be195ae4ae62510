"""A release that runs: the processes of the chart's pods, as the rendered templates say, on loopback addresses.

What a kubelet and the controllers would do is done here by hand: arguments, environment and files of each pod, and the
EndpointSlices of its Service. The router speaks to a fake API server, with the rights of the chart's Role only.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

ROOT = Path(__file__).resolve().parents[4]
START_S = 60.0
NET = f"127.78.{os.getpid() % 250}"
"""Loopback addresses of this test run's own: the pods' ports are those of the chart."""
PLURALS = {"Role": "roles", "RoleBinding": "rolebindings"}
KEPT_HERE = ("PHASESERVE_CACHE", "HOME")
"""Variables of the pods that stay those of this machine: models are converted once."""

Document = dict[str, Any]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Pod:
    """One pod of a rendered workload."""

    def __init__(self, release: Release, workload: Document, ordinal: int, ip: str) -> None:
        self.name, self.ip = f"{workload['metadata']['name']}-{ordinal}", ip
        self.labels: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
        self.spec: Document = workload["spec"]["template"]["spec"]
        (self._container,) = self.spec["containers"]
        self._log = release.folder / f"{self.name}.log"
        facts = {"metadata.name": self.name, "metadata.namespace": "serving", "status.podIP": ip}
        environment = {one["name"]: self._value(one, facts, release.secret) for one in self._container["env"]}
        environment = {name: value for name, value in environment.items() if value and name not in KEPT_HERE}
        words = [*self._container["command"], *self._container["args"]]
        assert words.pop(0) == "phaseserve"
        for name, value in environment.items():
            words = [word.replace(f"$({name})", value) for word in words]
        words = [word.replace("/etc/phaseserve", str(release.folder)) for word in words]
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cli", *words],
                cwd=ROOT,
                env={**os.environ, **environment, "KUBECONFIG": str(release.kubeconfig)},
                stdout=log,
                stderr=log,
            )

    @staticmethod
    def _value(variable: Document, facts: dict[str, str], secret: dict[str, str]) -> str:
        source = variable.get("valueFrom")
        if source is None:
            return str(variable["value"])
        if "fieldRef" in source:
            return facts[source["fieldRef"]["fieldPath"]]
        key = source["secretKeyRef"]
        return secret[key["key"]] if key["key"] in secret or not key.get("optional") else ""

    @property
    def ports(self) -> dict[str, int]:
        return {one["name"]: one["containerPort"] for one in self._container["ports"]}

    def probe(self, which: str) -> int:
        """The status that the kubelet would see; 0 while nothing answers."""
        asked = self._container[f"{which}Probe"]["httpGet"]
        assert asked.get("scheme", "HTTP") == "HTTP"
        with contextlib.suppress(httpx.TransportError):
            return httpx.get(f"http://{self.ip}:{self.ports[asked['port']]}{asked['path']}", timeout=5).status_code
        return 0

    def wait_ready(self) -> None:
        """Until startup and readiness are 200; alive all the while, once it answers."""
        deadline = time.monotonic() + START_S
        while not (self.probe("startup") == self.probe("readiness") == 200):
            assert self.process.poll() is None, self.said()
            assert self.probe("liveness") in (0, 200), self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.1)

    def said(self) -> str:
        return f"{self.name}: {self._log.read_text()[-3000:]}"

    def terminate(self) -> int:
        """SIGTERM; the exit code. Within the grace period, or the kubelet would kill it."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(self.spec["terminationGracePeriodSeconds"])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(10)


class Release:
    """The documents of one release, and its pods while they run."""

    def __init__(self, documents: list[Document], api: str, folder: Path) -> None:
        self.documents, self.folder = documents, folder
        self._api = httpx.Client(base_url=api, headers={"Authorization": "Bearer admin"}, timeout=20)
        self.pods: list[Pod] = []
        self.kubeconfig = folder / "kubeconfig"
        config: dict[str, Any] = {"current-context": "c", "users": [{"name": "u", "user": {"token": "router"}}]}
        config["clusters"] = [{"name": "c", "cluster": {"server": api}}]
        config["contexts"] = [{"name": "c", "context": {"cluster": "c", "user": "u"}}]
        self.kubeconfig.write_text(json.dumps(config))
        (secret,) = [one["data"] for one in documents if one["kind"] == "Secret"]
        self.secret = {key: base64.b64decode(value).decode() for key, value in secret.items()}
        (settings,) = [one["data"] for one in documents if one["kind"] == "ConfigMap"]
        for name, text in settings.items():
            (folder / name).write_text(text)

    def start(self) -> None:
        self._api.post("/api/v1/namespaces", json={"metadata": {"name": "serving"}}).raise_for_status()
        for one in self.documents:
            if plural := PLURALS.get(one["kind"]):
                path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/serving/{plural}"
                self._api.post(path, json=one).raise_for_status()
        numbers = iter(range(2, 250))
        for one in self.documents:
            if one["kind"] in ("StatefulSet", "Deployment"):
                self._start(one, numbers)
        for pod in self.replicas:
            pod.wait_ready()
        self._publish()
        self.router.wait_ready()

    def _start(self, workload: Document, numbers: Iterator[int]) -> None:
        is_router = workload["metadata"]["name"] == "chat-router"
        for ordinal in range(workload["spec"]["replicas"]):
            ip = f"{NET}.1" if is_router else f"{NET}.{next(numbers)}"
            self.pods.append(Pod(self, workload, ordinal, ip))

    @property
    def router(self) -> Pod:
        return next(pod for pod in self.pods if "http" in pod.ports)

    @property
    def replicas(self) -> list[Pod]:
        return [pod for pod in self.pods if "control" in pod.ports]

    @property
    def url(self) -> str:
        return f"http://{self.router.ip}:{self.router.ports['http']}"

    def _publish(self) -> None:
        """The slices of each headless Service, with its labels, as Kubernetes copies them."""
        for service in self.documents:
            if service["kind"] != "Service" or service["spec"].get("clusterIP") != "None":
                continue
            chosen = [pod for pod in self.replicas if service["spec"]["selector"].items() <= pod.labels.items()]
            assert chosen, "a Service without pods"
            ready = {"ready": True, "serving": True, "terminating": False}
            endpoints = [
                {"addresses": [pod.ip], "conditions": ready, "targetRef": {"kind": "Pod", "name": pod.name}}
                for pod in chosen
            ]
            ports = [{"name": name, "port": port, "protocol": "TCP"} for name, port in chosen[0].ports.items()]
            meta = {"name": f"{service['metadata']['name']}-x", "labels": service["metadata"]["labels"]}
            body: Document = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice", "metadata": meta}
            body |= {"addressType": "IPv4", "endpoints": endpoints, "ports": ports}
            path = "/apis/discovery.k8s.io/v1/namespaces/serving/endpointslices"
            self._api.post(path, json=body).raise_for_status()

    def lease(self) -> Document:
        path = "/apis/coordination.k8s.io/v1/namespaces/serving/leases/chat-fleet"
        found: Document = self._api.get(path).json()
        return found

    def end(self) -> None:
        for pod in self.pods:
            if pod.process.poll() is None:
                pod.kill()
        self._api.close()


VALUES: dict[str, Any] = {
    "secrets": {"adminToken": "0123456789abcdef0123"},
    "router": {"replicas": 1},
    "pools": {"alternating": {"replicas": 2}, "prefill": {"replicas": 1}, "decode": {"replicas": 1}},
    "settings": {
        "router": {"host": f"{NET}.1"},
        "replica": {"kind": "fake", "roles_may_change": True, "fake": {"eos_every": 8, "delays": False}},
    },
}


@pytest.fixture
def run_release(charted: Any, tmp_path: Path) -> Iterator[Callable[..., Release]]:
    """`run_release(**values)`: `chat` in `serving`, as the guide has it, with engines that make up tokens."""
    program = [sys.executable, "-m", "tests.k8s.apiserver", "--port", "0", "--token", "admin=admin"]
    program += ["--token", "router=system:serviceaccount:serving:chat-router"]
    with contextlib.ExitStack() as stack:
        api = stack.enter_context(subprocess.Popen(program, cwd=ROOT, stdout=subprocess.PIPE, text=True))
        stack.callback(api.kill)
        assert api.stdout is not None
        url = api.stdout.readline().split()[1]

        def run(**more: Any) -> Release:
            values = VALUES | {"router": {"replicas": 1, "port": free_port()}} | more
            found = Release(charted.documents(values, release="chat"), url, tmp_path)
            stack.callback(found.end)
            found.start()
            return found

        yield run


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
            file = tmp_path / "kubeconfig-of-the-guide"
            file.write_text(json.dumps({"current-context": "c", **names}))
            yield file
        finally:
            process.kill()
