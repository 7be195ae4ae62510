"""Real router and replica processes as the pods of a cluster, and load on them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from k8s.access import NEEDED
from tests.k8s.kubelet import CONTROL_PORT, ROOT, STS, Kubelet

RBAC = "apis/rbac.authorization.k8s.io/v1"
COST = {"a0": 0.004, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 2e-4}
FAKE_ENGINE = {"cost": COST, "vocab_size": 400, "max_context": 2048, "num_blocks": 512}


class Router:
    """`phaseserve router --discovery kubernetes`, which may do what `k8s.access` says and nothing else."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, log: Path) -> None:
        self.process, self.log = process, log
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60)

    async def fleet(self) -> dict[str, Any]:
        """Shown replicas by id; none while it does not answer."""
        with contextlib.suppress(httpx.TransportError):
            shown = (await self.http.get("/fleet")).json()["replicas"]
            return {replica["replica_id"]: replica for replica in shown}
        return {}

    async def metric(self, name: str) -> float:
        text = (await self.http.get("/metrics")).text
        return sum(
            float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith((name + " ", name + "{"))
        )

    async def wait(self, check: Callable[[dict[str, Any]], bool], within_s: float = 60.0) -> None:
        try:
            async with asyncio.timeout(within_s):
                while not check(await self.fleet()):
                    assert self.process.returncode is None, self.log.read_text()
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise AssertionError(f"{await self.fleet()}\n{self.log.read_text()[-3000:]}") from error

    async def wait_joined(self, *names: str, within_s: float = 60.0) -> None:
        await self.wait(lambda fleet: set(fleet) == set(names), within_s)


class World:
    """One namespace with a kubelet, the workloads and routers that a test puts into it, and the load on them."""

    def __init__(self, server: Any, admin: Any, folder: Path, model: Path, free_port: Callable[[], int]) -> None:
        self.server, self.admin = server, admin
        self.kubelet = Kubelet(server, admin, folder)
        self._folder, self._model, self._free_port = folder, model, free_port
        self.routers: list[Router] = []
        self.answers: list[int] = []
        self.failures: list[str] = []

    def grant(self) -> None:
        """The router's Role, from the room's own table of permissions."""
        rules = [{"apiGroups": [a.group], "resources": [a.resource], "verbs": [a.verb]} for a in NEEDED]
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "router"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "router"}
        self.admin.do("POST", f"{RBAC}/roles", body={"metadata": {"name": "router"}, "rules": rules})
        binding = {"metadata": {"name": "router"}, "roleRef": reference, "subjects": [subject]}
        self.admin.do("POST", f"{RBAC}/rolebindings", body=binding)

    def template(self, role: str, replica_id: str = "$(POD_NAME)", **config: Any) -> dict[str, Any]:
        """A pod's template: its replica, with a fake engine."""
        whole = {"replica_id": replica_id, "role": role, "kind": "fake", "host": "$(POD_IP)", "port": CONTROL_PORT}
        whole |= {"fake": FAKE_ENGINE, **config}
        args = [sys.executable, "-m", "replica", json.dumps(whole)]
        container = {"name": "replica", "image": "phaseserve", "args": args}
        return {"metadata": {"labels": {"app": "phaseserve"}}, "spec": {"containers": [container]}}

    def deploy(self, name: str, size: int, template: dict[str, Any]) -> None:
        labels = {"app.kubernetes.io/name": "phaseserve", "app.kubernetes.io/component": "replica"}
        labels |= {"phaseserve.dev/pool": name}
        selector = {"matchLabels": {"app": "phaseserve"}}
        spec = {"replicas": size, "serviceName": name, "selector": selector, "template": template}
        body = {"apiVersion": "apps/v1", "kind": "StatefulSet", "metadata": {"name": name, "labels": labels}}
        self.admin.do("POST", STS, body={**body, "spec": spec})

    def scale(self, name: str, size: int) -> None:
        self.admin.do("PATCH", STS, f"{name}/scale", {"spec": {"replicas": size}})

    async def start_router(self, *settings: str) -> Router:
        port = self._free_port()
        kubeconfig = self.server.kubeconfig(self._folder, self.admin.namespace, "router-token")
        words = ["-m", "cli", "router", "--model", str(self._model), "--port", str(port), "--discovery", "kubernetes"]
        shown = (f"kubernetes.kubeconfig={kubeconfig}", "kubernetes.watch_s=5", "kubernetes.max_backoff_s=1", *settings)
        words += [word for setting in shown for word in ("--set", setting)]
        log_path = self._folder / f"router{len(self.routers)}.log"
        with log_path.open("ab") as log:
            process = await asyncio.create_subprocess_exec(sys.executable, *words, cwd=ROOT, stdout=log, stderr=log)
        self.routers.append(Router(process, port, log_path))
        return self.routers[-1]

    async def ask(self, router: Router, number: int, max_tokens: int = 40) -> None:
        """One request, streamed to its end; what went wrong is in `failures`."""
        body = {"model": "tiny", "prompt": [5 + number % 300] * (20 + number % 30), "max_tokens": max_tokens}
        body |= {"ignore_eos": True, "temperature": 0, "stream": True}
        told, text = 0, ""
        try:
            async with router.http.stream("POST", "/v1/completions", json=body) as answer:
                async for line in answer.aiter_lines():
                    text = line or text
                    told += '"text"' in line
                if answer.status_code != 200 or not text.endswith("[DONE]") or not told:
                    self.failures.append(f"{number}: {answer.status_code} {text}")
            self.answers.append(told)
        except httpx.HTTPError as error:
            self.failures.append(f"{number}: {error!r}")

    @contextlib.asynccontextmanager
    async def load(self, router: Router, clients: int = 4, max_tokens: int = 40) -> AsyncIterator[None]:
        """So many clients ask one request after the other."""
        numbers, over = itertools.count(), asyncio.Event()

        async def client() -> None:
            while not over.is_set():
                await self.ask(router, next(numbers), max_tokens)

        tasks = [asyncio.create_task(client()) for _ in range(clients)]
        try:
            yield
        finally:
            over.set()
            await asyncio.gather(*tasks)

    async def end(self) -> None:
        for router in self.routers:
            await router.http.aclose()
            if router.process.returncode is None:
                router.process.kill()
            await router.process.wait()
        await self.kubelet.end()


@pytest.fixture(scope="session")
def fleet_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model directory that resolves: a byte tokenizer of 400 tokens and one layer of zeros."""
    folder = tmp_path_factory.mktemp("fleet") / "tiny"
    folder.mkdir()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate([*alphabet, *(f"<{n}>" for n in range(400 - 256))])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8}
    config |= {"intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    config |= {"head_dim": 4, "vocab_size": 400, "max_position_embeddings": 2048, "rms_norm_eps": 1e-5}
    config |= {"rope_theta": 1e4, "tie_word_embeddings": True, "hidden_act": "silu", "eos_token_id": 2}
    (folder / "config.json").write_text(json.dumps(config))
    square = np.zeros((8, 8), np.float32)
    names = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    tensors: dict[str, Any] = {f"model.layers.0.{name}.weight": square for name in names}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = np.ones(8, np.float32)
    tensors["model.embed_tokens.weight"] = np.zeros((400, 8), np.float32)
    save_file(tensors, folder / "model.safetensors")
    return folder


@pytest.fixture
async def world(
    server: Any, admin_of: Callable[[Any], Any], fleet_model: Path, tmp_path: Path, a_free_port: Callable[[], int]
) -> AsyncIterator[World]:
    """A namespace where the router has its rights, and a kubelet at work."""
    found = World(server, admin_of(server), tmp_path, fleet_model, a_free_port)
    found.grant()
    kubelet = asyncio.create_task(found.kubelet.run())
    yield found
    kubelet.cancel()
    await asyncio.wait([kubelet])
    await found.end()
