"""The servers compared, each as the command that starts it. Nothing here is tuned against a peer."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Peer:
    """One server: how it is started on `port`, and what its requests need."""

    name: str
    argv: tuple[str, ...]
    model: str
    env: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    drop: tuple[str, ...] = ()
    health: str = "/health"
    ready_s: float = 300.0


@dataclass(frozen=True, slots=True)
class Installed:
    """Where the peers are. None: not measured."""

    model_dir: Path
    vllm: Path | None = None
    vllm_preload: str | None = None
    llama_server: Path | None = None
    gguf_f32: Path | None = None
    gguf_q8: Path | None = None
    transformers: Path | None = None


MAX_CONTEXT = 2048
SLOTS = 16


def phaseserve(installed: Installed, port: int, *, threads: int, quantization: str, replicas: int, role: str) -> Peer:
    """Ours, through its own router, `replicas` of one role sharing the threads."""
    argv = (
        sys.executable, "-m", "cli", "up", f"--{role}", str(replicas), "--model", str(installed.model_dir),
        "--port", str(port), "--quantization", quantization, "--threads", str(max(1, threads // replicas)),
    )  # fmt: skip
    kind = "int8" if quantization == "int8" else "fp32"
    return Peer(f"PhaseServe {kind} {role} x{replicas}", argv, installed.model_dir.name, health="/health/ready")


def vllm(installed: Installed, port: int, threads: int) -> Peer:
    """vLLM on CPU, fp32, compiled, as its documentation recommends (preloads, thread binding)."""
    assert installed.vllm is not None
    env = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{threads - 1}",
        "VLLM_HOST_IP": "127.0.0.1",
        "GLOO_SOCKET_IFNAME": "lo",
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    if installed.vllm_preload:
        env["LD_PRELOAD"] = installed.vllm_preload
    argv = (
        str(installed.vllm), "serve", str(installed.model_dir), "--served-model-name", "m", "--dtype", "float32",
        "--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(MAX_CONTEXT), "--max-num-seqs", str(SLOTS),
    )  # fmt: skip
    return Peer("vLLM fp32", argv, "m", env=env, ready_s=600.0)


def llama_cpp(installed: Installed, port: int, threads: int, kind: str) -> Peer:
    """llama.cpp's own server, natively built, one slot a stream, continuous batching (its default)."""
    assert installed.llama_server is not None
    gguf = installed.gguf_f32 if kind == "F32" else installed.gguf_q8
    argv = (
        str(installed.llama_server), "-m", str(gguf), "--host", "127.0.0.1", "--port", str(port),
        "-t", str(threads), "-tb", str(threads), "-c", str(MAX_CONTEXT * SLOTS), "-np", str(SLOTS),
    )  # fmt: skip
    return Peer(f"llama.cpp {kind}", argv, "m", extra={"cache_prompt": False})


def transformers(installed: Installed, port: int, threads: int) -> Peer:
    """transformers serve with continuous batching; it answers 422 to fields outside OpenAI's schema."""
    assert installed.transformers is not None
    argv = (
        str(installed.transformers), "serve", str(installed.model_dir), "--device", "cpu", "--dtype", "float32",
        "--continuous-batching", "--cb-num-blocks", "256", "--cb-max-batch-tokens", "512",
        "--host", "127.0.0.1", "--port", str(port),
    )  # fmt: skip
    extra = {"generation_config": '{"eos_token_id": -1, "do_sample": false}'}
    env = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(threads)}
    return Peer("transformers CB fp32", argv, str(installed.model_dir), env=env, extra=extra, drop=("ignore_eos",))


def environment(peer: Peer) -> dict[str, str]:
    """The environment a peer runs in: ours plus its own."""
    return {**os.environ, **peer.env}
