"""Real replica processes over loopback, started and ended by process id; a tiny model that resolves."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

READY_MARK = "PHASESERVE_READY "
QUICK_COST = {"a0": 0.001, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 1e-5}
VOCAB = 400
CONTEXT = 2048
CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class ReplicaProcess:
    """One `python -m replica`. Its log is in `log_path`."""

    def __init__(self, config: dict[str, Any], log_path: Path) -> None:
        self.log_path = log_path
        self.endpoint = ""
        with log_path.open("w") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "replica", json.dumps(config)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.pid = self._popen.pid

    @property
    def stdout(self) -> IO[str]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208

    async def wait_ready(self, deadline_s: float = 60.0) -> None:
        line = await asyncio.wait_for(asyncio.to_thread(self.stdout.readline), deadline_s)
        assert line.startswith(READY_MARK), f"not ready: {line!r}\n{self.log}"
        self.endpoint = line.removeprefix(READY_MARK).strip()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    async def wait_exit(self, deadline_s: float = 20.0) -> int:
        """The exit code."""
        return await asyncio.to_thread(self._popen.wait, deadline_s)

    def end(self) -> None:
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            self._popen.kill()
        self._popen.wait(10)
        self.stdout.close()


@pytest.fixture(scope="session")
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


StartReplica = Callable[..., Awaitable[ReplicaProcess]]


@pytest.fixture
async def start_replica(tmp_path: Path) -> AsyncIterator[StartReplica]:
    """`await start_replica(role=..., ...)`: a replica with a quick fake engine; settings as in `ReplicaConfig`.

    `ready=False` does not wait for it.
    """
    started: list[ReplicaProcess] = []

    async def start(*, ready: bool = True, **settings: Any) -> ReplicaProcess:
        name = f"r{len(started)}"
        config = {"replica_id": name, "kind": "fake", "role": "mixed", "fake": {"cost": QUICK_COST}, **settings}
        process = ReplicaProcess(config, tmp_path / f"{name}.log")
        started.append(process)
        if ready:
            await process.wait_ready()
        return process

    yield start
    for process in started:
        process.end()
