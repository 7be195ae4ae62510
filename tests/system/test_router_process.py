"""A real router process over real replica processes with a fake engine: ends, losses and leavings."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

pytestmark = pytest.mark.system

VOCAB = 400
CONTEXT = 2048
STEP = {"a0": 0.005, "a1": 1e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Hugging Face directory that resolves: one layer of zeros, a byte-level tokenizer with 400 tokens."""
    directory = tmp_path_factory.mktemp("model") / "tiny"
    directory.mkdir()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([" ".join(f"word{i} thing{i}" for i in range(400))], trainer)
    assert tokenizer.get_vocab_size() == VOCAB
    tokenizer.save(str(directory / "tokenizer.json"))
    settings = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHATML}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    shape = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        **shape,
        "num_key_value_heads": 2,
        "head_dim": 4,
        "vocab_size": VOCAB,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": True,
        "hidden_act": "silu",
        "eos_token_id": 2,
        "bos_token_id": 1,
    }
    (directory / "config.json").write_text(json.dumps(config))
    names = [f"self_attn.{part}_proj" for part in "qkvo"] + [f"mlp.{part}_proj" for part in ("gate", "up", "down")]
    tensors: dict[str, Any] = {f"model.layers.0.{name}.weight": np.zeros((8, 8), np.float32) for name in names}
    for name in ("layers.0.input_layernorm", "layers.0.post_attention_layernorm", "norm"):
        tensors[f"model.{name}.weight"] = np.ones(8, np.float32)
    tensors["model.embed_tokens.weight"] = np.zeros((VOCAB, 8), np.float32)
    save_file(tensors, directory / "model.safetensors")
    return directory


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RouterProcess:
    """`phaseserve router` on a port of its own."""

    def __init__(
        self, model: Path, endpoints: list[str], log_path: Path, *settings: str, port: int | None = None
    ) -> None:
        self.port = free_port() if port is None else port
        words = ["router", "--model", str(model), "--port", str(self.port)]
        words += [word for endpoint in endpoints for word in ("--replica", endpoint)]
        words += [word for setting in settings for word in ("--set", setting)]
        self.log_path = log_path
        with log_path.open("w") as log:
            self.popen = subprocess.Popen([sys.executable, "-m", "cli", *words], stdout=log, stderr=log)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    async def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self.http.get("/health/ready")).status_code == 200
        return False

    async def wait(self, wanted: bool = True, deadline_s: float = 40.0) -> None:
        """Until ready, or until not ready."""
        async with asyncio.timeout(deadline_s):
            while await self.ready() is not wanted:
                assert self.popen.poll() is None, self.log_path.read_text()
                await asyncio.sleep(0.05)

    async def fleet(self) -> dict[str, dict[str, Any]]:
        """The last view of every live replica."""
        shown = (await self.http.get("/decisions?limit=1")).json()["fleet"]["replicas"]
        return {replica["replica_id"]: replica["view"] for replica in shown}

    async def wait_nothing_left(self, deadline_s: float = 10.0) -> None:
        """Every block of every live replica is free and nothing waits or runs."""

        def is_empty(view: dict[str, Any]) -> bool:
            return bool(view["running"] == view["waiting"] == 0 and view["free_blocks"] == view["num_blocks"])

        await self.wait_fleet(lambda views: all(is_empty(view) for view in views.values()), deadline_s)

    async def wait_fleet(self, condition: Callable[[dict[str, Any]], bool], deadline_s: float = 20.0) -> None:
        """Until the views are as wanted."""
        async with asyncio.timeout(deadline_s):
            while not condition(await self.fleet()):  # noqa: ASYNC110  (the fleet is in other processes)
                await asyncio.sleep(0.02)

    async def exit_code(self, deadline_s: float = 30.0) -> int:
        return await asyncio.to_thread(self.popen.wait, deadline_s)


StartRouter = Callable[..., Awaitable[RouterProcess]]


@pytest.fixture
async def start_router(tiny_model: Path, tmp_path: Path) -> AsyncIterator[StartRouter]:
    started: list[RouterProcess] = []

    async def start(*replicas: Any, settings: tuple[str, ...] = (), ready: bool = True) -> RouterProcess:
        router = RouterProcess(tiny_model, [r.endpoint for r in replicas], tmp_path / "router.log", *settings)
        started.append(router)
        if ready:
            await router.wait()
            await router.wait_fleet(lambda views: len(views) == len(replicas))
        return router

    yield start
    for router in started:
        await router.http.aclose()
        if router.popen.poll() is None:
            router.popen.kill()
        router.popen.wait(10)


def fake(**changes: Any) -> dict[str, Any]:
    return {"fake": {"cost": STEP, "vocab_size": VOCAB, "max_context": CONTEXT, "num_blocks": 512, **changes}}


def body(words: str = "hi", **fields: Any) -> dict[str, Any]:
    given = {"max_tokens": 60, "ignore_eos": True, **fields}
    return {"model": "tiny", "messages": [{"role": "user", "content": words}], **given}


async def streamed(router: RouterProcess, fields: dict[str, Any], began: asyncio.Event | None = None) -> bytes:
    async with router.http.stream("POST", "/v1/chat/completions", json={**fields, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        received = b""
        async for part in answer.aiter_bytes():
            received += part
            if began is not None:
                began.set()
        return received


async def test_k8s_7_a_drain_lets_streams_end_and_exits_with_zero(
    start_replica: Any, start_router: StartRouter
) -> None:
    router = await start_router(await start_replica(**fake()))
    began = [asyncio.Event() for _ in range(5)]
    streams = [asyncio.create_task(streamed(router, body(f"say {i}"), event)) for i, event in enumerate(began)]
    for event in began:
        await asyncio.wait_for(event.wait(), 20)
    router.popen.send_signal(signal.SIGTERM)
    for received in await asyncio.gather(*streams):
        assert received.endswith(b"data: [DONE]\n\n")
        assert received.count(b'"finish_reason":"length"') == 1
        assert b'"error"' not in received
    assert await router.exit_code() == 0
    with pytest.raises(httpx.TransportError):
        await router.http.get("/health/live")


async def test_kill_of_a_replica_ends_its_streams_and_moves_what_has_no_token(
    start_replica: Any, start_router: StartRouter
) -> None:
    replicas = [await start_replica(**fake()) for _ in range(2)]
    router = await start_router(*replicas)
    answers = [asyncio.create_task(router.http.post("/v1/chat/completions", json=body(f"go {i}"))) for i in range(8)]
    await router.wait_fleet(lambda views: views["r0"]["running"] > 0)
    replicas[0].signal(signal.SIGKILL)
    statuses = [answer.status_code for answer in await asyncio.gather(*answers)]
    assert set(statuses) <= {200, 503}
    assert 200 in statuses
    after = await asyncio.gather(*(router.http.post("/v1/chat/completions", json=body()) for _ in range(5)))
    assert [answer.status_code for answer in after] == [200] * 5
    assert {answer.headers["x-phaseserve-replica"] for answer in after} == {"r1"}
    await router.wait_nothing_left()


async def test_rtr_4_a_frozen_replica_is_not_ready_and_comes_back(
    start_replica: Any, start_router: StartRouter
) -> None:
    replica = await start_replica(**fake())
    router = await start_router(replica, settings=("router.silence_s=1",))
    replica.signal(signal.SIGSTOP)
    try:
        await router.wait(wanted=False, deadline_s=10)
        refused = await router.http.post("/v1/chat/completions", json=body())
        assert refused.status_code == 503
        assert (await router.http.get("/health/live")).status_code == 200
    finally:
        replica.signal(signal.SIGCONT)
    await router.wait()
    assert (await router.http.post("/v1/chat/completions", json=body())).status_code == 200
    await router.wait_nothing_left()


async def test_can_1_2_4_rtr_1_clients_that_leave_leave_nothing_behind(
    start_replica: Any, start_router: StartRouter
) -> None:
    slow_prefill = {**STEP, "a1": 0.002}
    replica = await start_replica(**fake(cost=slow_prefill))
    router = await start_router(replica)

    async def leave_after(fields: dict[str, Any], wait_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await router.http.post("/v1/chat/completions", json=fields)

    long = "word1 " * 500
    leaving = [leave_after(body(long, stream=i % 2 == 0, max_tokens=500), 0.3 + 0.02 * i) for i in range(10)]
    leaving += [leave_after(body(max_tokens=900, stream=i % 2 == 0), 0.5) for i in range(10)]
    await asyncio.gather(*leaving)
    began = time.monotonic()
    answer = await router.http.post("/v1/chat/completions", json=body(max_tokens=1))
    assert answer.status_code == 200
    prefills_s = 10 * 1000 * slow_prefill["a1"]
    assert time.monotonic() - began < prefills_s / 2
    await router.wait_nothing_left()
    assert [(await router.http.post("/v1/chat/completions", json=body())).status_code for _ in range(3)] == [200] * 3


async def test_k8s_4_a_draining_replica_fails_no_request(start_replica: Any, start_router: StartRouter) -> None:
    replicas = [await start_replica(**fake()) for _ in range(2)]
    router = await start_router(*replicas)
    streams = [asyncio.create_task(streamed(router, body(f"go {i}", max_tokens=80))) for i in range(8)]
    await router.wait_fleet(lambda views: views["r0"]["running"] > 0)
    replicas[0].signal(signal.SIGTERM)
    more = [asyncio.create_task(streamed(router, body(f"more {i}"))) for i in range(8)]
    for received in await asyncio.gather(*streams, *more):
        assert received.endswith(b"data: [DONE]\n\n")
        assert b'"error"' not in received
    assert await replicas[0].wait_exit() == 0
    assert (await router.http.post("/v1/chat/completions", json=body())).status_code == 200


async def test_what_cannot_be_served_is_refused_before_a_port_opens(
    start_router: StartRouter, tiny_model: Path, tmp_path: Path
) -> None:
    missing = RouterProcess(tmp_path / "nothing", ["tcp://127.0.0.1:1"], tmp_path / "missing.log")
    assert await missing.exit_code() not in {0, None}
    assert "no such model" in missing.log_path.read_text()
    await missing.http.aclose()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        busy = RouterProcess(tiny_model, ["tcp://127.0.0.1:1"], tmp_path / "busy.log", port=taken.getsockname()[1])
        assert await busy.exit_code() not in {0, None}
        assert "cannot listen" in busy.log_path.read_text()
        await busy.http.aclose()
