"""Whole deployments by `phaseserve up`: real processes, a real engine, a tiny random model, a real tokenizer."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

READY_S = 120.0
CONTEXT = 2048


@dataclass(slots=True)
class Server:
    """One `phaseserve up`. `log` grows while it runs."""

    url: str
    model: str
    process: subprocess.Popen[str]
    log: list[str]

    def post(self, path: str, body: dict[str, Any], timeout_s: float = 60.0) -> httpx.Response:
        return httpx.post(f"{self.url}{path}", json={"model": self.model, **body}, timeout=timeout_s)

    def completion(self, prompt: object, **fields: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", {"prompt": prompt, "temperature": 0, **fields})
        assert answer.status_code == 200, answer.text
        result: dict[str, Any] = answer.json()
        return result

    def text(self, prompt: object, **fields: Any) -> str:
        text: str = self.completion(prompt, **fields)["choices"][0]["text"]
        return text

    def decisions(self) -> list[dict[str, Any]]:
        """The latest decisions, newest first."""
        decisions: list[dict[str, Any]] = httpx.get(f"{self.url}/decisions", timeout=10).json()["decisions"]
        return decisions

    def gauge(self, name: str) -> float:
        """Sum of all samples of one metric."""
        lines = httpx.get(f"{self.url}/metrics", timeout=10).text.splitlines()
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith((name + "{", name + " "))]
        assert found, f"no metric {name}"
        return sum(found)


def free_port() -> int:
    """Below the range from which the system gives ports away: nobody's connection takes it before it is listened on."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no free port")


@contextlib.contextmanager
def started(model: Path, *words: str) -> Iterator[Server]:
    port = free_port()
    argv = [sys.executable, "-m", "cli", "up", "--model", str(model), "--port", str(port), "--threads", "1", *words]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True, env=dict(os.environ)
    )
    log: list[str] = []
    assert process.stdout is not None
    reader = threading.Thread(target=lambda: log.extend(process.stdout or ()), daemon=True)
    reader.start()
    server = Server(f"http://127.0.0.1:{port}", model.name, process, log)
    try:
        deadline = time.monotonic() + READY_S
        while True:
            assert process.poll() is None, "".join(log)
            assert time.monotonic() < deadline, "not ready:\n" + "".join(log)
            with contextlib.suppress(httpx.HTTPError):
                if httpx.get(f"{server.url}/health/ready", timeout=2).status_code == 200:
                    break
            time.sleep(0.1)
        server.model = httpx.get(f"{server.url}/v1/models", timeout=5).json()["data"][0]["id"]
        yield server
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(45)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            raise
        finally:
            reader.join(10)
            process.stdout.close()
    assert not [line for line in log if "Traceback" in line], "".join(log)


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights (the same ones each time) and SmolLM2's tokenizer and template."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from engine.checkpoint.resolve import resolve_model

    files = resolve_model("smollm2-135m")
    folder = tmp_path_factory.mktemp("models") / "tiny"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=files.spec.vocab_size, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=16, max_position_embeddings=CONTEXT,
        tie_word_embeddings=True, initializer_range=0.2, bos_token_id=1, eos_token_id=2, pad_token_id=2,
    )  # fmt: skip
    LlamaForCausalLM(config).save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(files.directory / name, folder / name)
    return folder


@pytest.fixture(scope="session")
def start() -> Callable[..., contextlib.AbstractContextManager[Server]]:
    """Starts a deployment: `with start(model_dir, "--alternating", "1") as server`."""
    return started


@pytest.fixture(scope="session")
def oracle(tiny_model: Path) -> Iterator[Server]:
    """The same model without chunking and without prefix cache."""
    settings = ("--set", "scheduling.max_chunk=4096", "--set", "scheduling.prefix_cache=false")
    with started(tiny_model, "--mixed", "1", "--set", "admission=sarathi(4096)", *settings) as server:  # fmt: skip
        yield server


@pytest.fixture(scope="session")
def pair(tiny_model: Path) -> Iterator[Server]:
    """One prefill and one decode replica, chunks of 64 tokens."""
    small_chunks = ("--set", "scheduling.max_chunk=64", "--set", "scheduling.min_chunk=16")
    with started(tiny_model, "--prefill", "1", "--decode", "1", *small_chunks) as server:
        yield server


CHUNK = 64
BLOCK = 16


@pytest.fixture(scope="session", params=["alternating", "mixed"])
def chunked(request: pytest.FixtureRequest, tiny_model: Path) -> Iterator[Server]:
    """Chunks of 64 tokens and the prefix cache on."""
    words = (f"--{request.param}", "1", "--set", f"scheduling.max_chunk={CHUNK}", "--set", "scheduling.min_chunk=16")
    with started(tiny_model, *words) as server:
        yield server
