"""What a cluster with an API server and nothing else is missing, alike on both servers: the StatefulSet controller
(sizes, rolling updates), scheduler and kubelet (one process a pod, on a loopback address of its own), and the
controller of EndpointSlices.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import json
import os
import signal
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
STS, PODS, SLICES = "apis/apps/v1/statefulsets", "api/v1/pods", "apis/discovery.k8s.io/v1/endpointslices"
REVISION = "controller-revision-hash"
CONTROL_PORT = 5555
_hosts = itertools.count(os.getpid() % 50 * 200 + 10)


def pod_ip() -> str:
    number = next(_hosts)
    return f"127.77.{number // 250 % 250}.{number % 250 + 1}"


class Pod:
    """One pod's process. It is started again when it ends by itself."""

    def __init__(self, name: str, command: list[str], log: Path) -> None:
        self.name, self.ip = name, pod_ip()
        words = [word.replace("$(POD_NAME)", name).replace("$(POD_IP)", self.ip) for word in command]
        self._command, self._log = words, log
        self.ready = self.terminated = False
        self.restarts = -1
        self.process: asyncio.subprocess.Process | None = None
        self._reader: asyncio.Task[None] | None = None

    async def sync(self, terminating: bool) -> bool:
        """Whether its end is complete."""
        if terminating and not self.terminated:
            self.terminated, self.ready = True, False
            if self.process is not None and self.process.returncode is None:
                self.process.send_signal(signal.SIGTERM)
        if self.process is None or self.process.returncode is not None:
            self.ready = False
            if self.terminated:
                return True
            await self._start()
        return False

    async def _start(self) -> None:
        self.restarts += 1
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self._command, cwd=ROOT, stdout=asyncio.subprocess.PIPE, stderr=log
            )
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.ready = self.ready or (line.startswith(b"PHASESERVE_READY") and not self.terminated)

    async def end(self) -> None:
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
        if self.process is not None:
            await self.process.wait()
        if self._reader is not None:
            await self._reader


class Kubelet:
    """`run` keeps the pods of one namespace as its StatefulSets want them; an API server that is away is waited for."""

    def __init__(self, server: Any, admin: Any, folder: Path) -> None:
        self._admin, self._folder = admin, folder
        self._http = httpx.AsyncClient(base_url=server.url, headers=dict(admin.http.headers), verify=False, timeout=5)
        self.pods: dict[str, Pod] = {}
        self._slices: dict[str, Any] = {}

    async def run(self) -> None:
        while True:
            with contextlib.suppress(httpx.HTTPError):
                await self._sync()
            await asyncio.sleep(0.05)

    async def end(self) -> None:
        await asyncio.gather(*(pod.end() for pod in self.pods.values()))
        await self._http.aclose()

    async def _do(self, method: str, base: str, name: str = "", body: Any = None) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        content = None if body is None else json.dumps(body)
        path = self._admin.path(base, name)
        answer = await self._http.request(method, path, content=content, headers={"Content-Type": kind})
        if answer.status_code not in (404, 409):
            answer.raise_for_status()
        result: dict[str, Any] = answer.json()
        return result

    async def _sync(self) -> None:
        pods = {item["metadata"]["name"]: item for item in (await self._do("GET", PODS))["items"]}
        for workload in (await self._do("GET", STS))["items"]:
            await self._workload(workload, pods)
        for name, item in pods.items():
            pod = self.pods.get(name)
            if pod is None:
                command = item["spec"]["containers"][0]["args"]
                pod = self.pods[name] = Pod(name, command, self._folder / f"{name}.log")
            if await pod.sync("deletionTimestamp" in item["metadata"]):
                await self._do("DELETE", PODS, name, {"gracePeriodSeconds": 0})
                await pod.end()
                del self.pods[name]

    async def _workload(self, workload: dict[str, Any], pods: dict[str, Any]) -> None:
        name, template = workload["metadata"]["name"], workload["spec"]["template"]
        revision = hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:8]
        wanted = [f"{name}-{ordinal}" for ordinal in range(workload["spec"]["replicas"])]
        labels = workload["metadata"]["labels"]
        mine = {pod: item for pod, item in pods.items() if item["metadata"]["labels"].get("sts") == name}
        for pod in wanted:
            if pod not in pods:
                await self._create(pod, template, {**labels, "sts": name, REVISION: revision})
        leaving = [pod for pod in mine if pod not in wanted]
        outdated = [pod for pod in wanted if pod in mine and mine[pod]["metadata"]["labels"][REVISION] != revision]
        others_ready = all(pod in self.pods and self.pods[pod].ready for pod in wanted)
        if outdated and others_ready and not any("deletionTimestamp" in item["metadata"] for item in mine.values()):
            leaving.append(outdated[-1])
        for pod in leaving:
            if "deletionTimestamp" not in mine[pod]["metadata"]:
                await self._do("DELETE", PODS, pod, {"gracePeriodSeconds": 30})
        if workload.get("status", {}).get("replicas") != len(mine):
            await self._do("PATCH", STS, f"{name}/status", {"status": {"replicas": len(mine)}})
        await self._publish(name, labels, mine)

    async def _create(self, name: str, template: dict[str, Any], labels: dict[str, str]) -> None:
        spec = {**template["spec"], "nodeName": "node", "terminationGracePeriodSeconds": 30}
        await self._do("POST", PODS, body={"metadata": {"name": name, "labels": labels}, "spec": spec})

    async def _publish(self, name: str, labels: dict[str, str], mine: dict[str, Any]) -> None:
        endpoints = [
            {
                "addresses": [pod.ip],
                "conditions": {"ready": pod.ready, "serving": pod.ready, "terminating": pod.terminated},
                "targetRef": {"kind": "Pod", "name": pod.name, "namespace": self._admin.namespace},
            }
            for pod in (self.pods[each] for each in sorted(mine) if each in self.pods)
        ]
        if self._slices.get(name) == endpoints:
            return
        body: dict[str, Any] = {"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice"}
        body["metadata"] = {"name": f"{name}-slice", "labels": labels}
        body["addressType"], body["endpoints"] = "IPv4", endpoints
        body["ports"] = [{"name": "control", "port": CONTROL_PORT, "protocol": "TCP"}]
        made = await self._do("PATCH", SLICES, f"{name}-slice", body)
        if made.get("kind") == "Status":
            await self._do("POST", SLICES, body=body)
        self._slices[name] = endpoints
