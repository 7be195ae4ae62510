"""Fleets of real prefill and decode processes, and a model whose text names every token: equal text, equal tokens."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from contracts.phase import Role
from experiments.network.fleet import LanFleet

VOCAB = 600
CONTEXT = 2048
FIRST_CHARACTER = 0x4E00
NUM_BLOCKS = 3072  # of 16 tokens: nothing is preempted
WISH = {"layout": "disaggregated", "on_unavailable": "fail"}
COUNTED = ("prompt_tokens_computed", "kv_bytes_in", "kv_bytes_out", "handoffs_in", "handoffs_failed")


SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": VOCAB, "max_position_embeddings": CONTEXT,
    "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu",
    "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MATRICES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
}  # fmt: skip


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two layers with random weights, the same ones each time. Token i is written as one character, i."""
    return write_model(tmp_path_factory.mktemp("models") / "tiny", 4)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another revision of the tiny model: the same shapes, other weights."""
    return write_model(tmp_path_factory.mktemp("revisions") / "tiny", 5)


def write_model(folder: Path, seed: int) -> Path:
    folder.mkdir()
    draw = np.random.default_rng(seed)
    shapes = {"model.embed_tokens": (VOCAB, 64), "lm_head": (VOCAB, 64)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in MATRICES.items()}
    tensors = {f"{name}.weight": draw.normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"model.layers.{layer}.{name}_layernorm" for layer in range(2) for name in ("input", "post_attention")]
    tensors |= {f"{name}.weight": np.ones(64, np.float32) for name in [*norms, "model.norm"]}
    save_file(tensors, folder / "model.safetensors")
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SHAPE}
    (folder / "config.json").write_bytes(msgspec.json.encode(config))
    words = {"<unk>": 0, "<bos>": 1, "<eos>": 2}
    words |= {chr(FIRST_CHARACTER + token_id): token_id for token_id in range(len(words), VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens([AddedToken(word, special=True) for word in list(words)[:3]])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"bos_token": "<bos>", "eos_token": "<eos>", "chat_template": "{{ messages[0].content }}"}
    (folder / "tokenizer_config.json").write_bytes(msgspec.json.encode(settings))
    return folder


@dataclass(slots=True)
class Front:
    """What a client and an operator see of a fleet."""

    fleet: LanFleet
    model: str

    def post(self, body: Mapping[str, Any], deadline_s: float = 600.0) -> httpx.Response:
        return httpx.post(f"{self.fleet.url}/v1/completions", json={"model": self.model, **body}, timeout=deadline_s)

    def answer(self, body: Mapping[str, Any]) -> dict[str, Any]:
        response = self.post(body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    def answers(self, bodies: Sequence[Mapping[str, Any]], at_once: int) -> list[dict[str, Any]]:
        """In their order, so many at a time."""
        with ThreadPoolExecutor(at_once) as pool:
            return list(pool.map(self.answer, bodies))

    def views(self) -> dict[str, dict[str, Any]]:
        """The last view of every live replica."""
        shown = self.fleet.get("/decisions?limit=1")["fleet"]["replicas"]
        return {replica["replica_id"]: replica["view"] for replica in shown}

    def counted(self) -> dict[str, dict[str, float]]:
        """Counters by replica, since its start."""
        return {name: {key: view[key] for key in COUNTED} for name, view in self.views().items()}

    def decisions(self, count: int) -> list[dict[str, Any]]:
        """The latest ones, newest first."""
        decisions: list[dict[str, Any]] = self.fleet.get(f"/decisions?limit={count}")["decisions"]
        return decisions

    def metric(self, name: str) -> float:
        """Sum of all samples of one metric."""
        lines = httpx.get(f"{self.fleet.url}/metrics", timeout=10).text.splitlines()
        heads = (name + " ",) if name.endswith("}") else (name + "{", name + " ")
        found = [float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(heads)]
        assert found, f"no metric {name}"
        return sum(found)

    def wait(self, check: Callable[[], bool], deadline_s: float = 60.0) -> None:
        deadline = time.monotonic() + deadline_s
        while not check():
            assert time.monotonic() < deadline, {name: member.log[-8:] for name, member in self.fleet.members.items()}
            time.sleep(0.05)

    def wait_nothing_left(self) -> None:
        """Every block of every live replica is free again."""

        def is_free(view: dict[str, Any]) -> bool:
            busy = ("running", "waiting", "sending", "receiving")
            return not any(view[name] for name in busy) and bool(view["free_blocks"] == view["num_blocks"])

        self.wait(lambda: all(is_free(view) for view in self.views().values()))


StartFleet = Callable[..., contextlib.AbstractContextManager[Front]]


@contextlib.contextmanager
def started(
    model: str,
    roles: Mapping[str, Role],
    *,
    num_blocks: int = NUM_BLOCKS,
    own: Mapping[str, Mapping[str, Any]] | None = None,
    router_settings: Sequence[str] = (),
    linked: bool = True,
    joined: Sequence[str] | None = None,
    **settings: Any,
) -> Iterator[Front]:
    """A fleet that is ready and, when `linked`, whose every pair has a link; at the end nothing may be left in it.

    `settings` are tables of every replica (`core={...}`, `transfer={...}`), `own` those of single replicas; `joined`
    are those that the router takes (all).
    """
    tables = {**settings, "engine": {"num_blocks": num_blocks, "threads": 1}}
    with LanFleet(None, roles, model=model, settings=tables, own=own, router_settings=router_settings) as fleet:
        served = fleet.get("/v1/models")["data"][0]["id"]
        front = Front(fleet, served)
        givers = [name for name, role in roles.items() if role is Role.PREFILL]
        takers = [name for name, role in roles.items() if role is Role.DECODE]
        front.wait(lambda: set(front.views()) == set(roles if joined is None else joined))
        if linked and takers:
            front.wait(lambda: all(_linked(front.views()[giver], takers) for giver in givers))
        yield front
        front.wait_nothing_left()
        logs = {name: member.log for name, member in fleet.members.items()}
        assert not [line for log in logs.values() for line in log if "Traceback" in line], logs


def _linked(view: dict[str, Any], takers: Sequence[str]) -> bool:
    usable = {link["peer_id"] for link in view["links"] if link["why_not"] is None and link["bytes_per_s"]}
    return usable >= set(takers)


@pytest.fixture(scope="session")
def start_fleet() -> StartFleet:
    """`with start_fleet(model, roles, ...) as front`: see `started`."""
    return started


@pytest.fixture(scope="session")
def oracle(tiny_model: Path) -> Iterator[Front]:
    """The tiny model in one replica, prompts whole, without prefix cache."""
    core = {"admission": "sarathi(4096)", "max_chunk": 4096, "prefix_cache": False}
    with started(str(tiny_model), {"one": Role.MIXED}, core=core) as front:
        yield front


LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 23, 31, 32, 33, 40, 47, 48, 49, 60, 63, 64, 65, 80, 96, 100, 111, 127, 128),
    *(129, 150, 177, 200, 222, 255, 256, 257, 300, 333, 400, 480, 512, 513, 640, 700, 777, 900, 1024, 1100, 1300),
    1500,
)
KINDS: tuple[dict[str, Any], ...] = (
    {"max_tokens": 64},
    {"max_tokens": 40, "logprobs": 5},
    {"max_tokens": 40, "temperature": 0.9, "top_p": 0.9, "seed": 11},
    {"max_tokens": 32, "temperature": 1.0, "seed": 5, "n": 2, "logprobs": 0},
    {"max_tokens": 64, "stop": ""},
    {"max_tokens": 24, "logprobs": 2, "echo": True},
    {"max_tokens": 40, "temperature": 0.7, "seed": 3, "frequency_penalty": 0.8, "repetition_penalty": 1.2},
    {"max_tokens": 128, "logprobs": 1, "min_tokens": 100},
)
assert len(LENGTHS) == 50


def prompt_of(length: int, salt: int = 0) -> list[int]:
    """Random tokens; prompts of other lengths or salts share no first block."""
    draw = random.Random(f"{length} {salt}")
    return [draw.randrange(3, VOCAB) for _ in range(length)]


@pytest.fixture(scope="session")
def prompts() -> Callable[[int, int], list[int]]:
    """`prompts(length, salt)`: see `prompt_of`."""
    return prompt_of


def ask_of(index: int, length: int) -> dict[str, Any]:
    """What is asked: every kind meets short and long prompts. Every fifth prompt begins like all other fifth ones."""
    prompt = prompt_of(length)
    if index % 5 == 4:
        shared = min(length // 2, 300)
        prompt[:shared] = prompt_of(300, salt=1)[:shared]
    return {"prompt": prompt, "temperature": 0, "ignore_eos": True, **KINDS[index * 3 % len(KINDS)]}


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests, and what one replica answers to each when it is alone."""

    bodies: list[dict[str, Any]]
    answers: list[dict[str, Any]]

    @property
    def wished(self) -> list[dict[str, Any]]:
        """The requests, to be served by a pair or not at all."""
        return [{**body, "phaseserve": WISH} for body in self.bodies]

    def same(self, answers: Sequence[Mapping[str, Any]]) -> None:
        """The same tokens, log probabilities, ends and usage. Raises `AssertionError`."""
        for body, mine, theirs in zip(self.bodies, answers, self.answers, strict=True):
            where = f"prompt of {len(body['prompt'])}: { {key: body[key] for key in body if key != 'prompt'} }"
            assert mine["usage"]["completion_tokens"] == theirs["usage"]["completion_tokens"], where
            assert mine["usage"]["prompt_tokens"] == len(body["prompt"]), where
            for here, there in zip(mine["choices"], theirs["choices"], strict=True):
                assert here["text"] == there["text"], where
                assert (here["index"], here["finish_reason"]) == (there["index"], there["finish_reason"]), where
                same_logprobs(here["logprobs"], there["logprobs"], where)


def same_logprobs(mine: Any, theirs: Any, where: str) -> None:
    """The same tokens, chosen and beside, with log probabilities as near as another order of sums allows."""
    if theirs is None:
        assert mine is None, where
        return
    assert mine["tokens"] == theirs["tokens"], where
    for here, there in zip(mine["token_logprobs"], theirs["token_logprobs"], strict=True):
        assert here == there or abs(here - there) < 1e-3, where
    for here, there in zip(mine["top_logprobs"] or (), theirs["top_logprobs"] or (), strict=True):
        assert (here or {}).keys() == (there or {}).keys(), where
        assert all(abs(value - there[token]) < 1e-3 for token, value in (here or {}).items()), where


def asked_alone(one: Front, bodies: Sequence[Mapping[str, Any]], wish: Mapping[str, str]) -> Asked:
    """Ask one replica for each alone. A stop string that is still to be chosen is cut out of the answer without it."""
    chosen = []
    for body in bodies:
        stop = {}
        if body.get("stop") == "":
            text = one.answer({**body, "stop": [], "phaseserve": wish})["choices"][0]["text"]
            stop = {"stop": [text[len(text) // 2 :][:2]]}
        chosen.append({**body, **stop})
    return Asked(chosen, one.answers([{**body, "phaseserve": wish} for body in chosen], 1))


@pytest.fixture(scope="session")
def asked_of() -> Callable[..., Asked]:
    """`asked_of(front, bodies, wish)`: the requests and what one replica answers: see `asked_alone`."""
    return asked_alone


@pytest.fixture(scope="session")
def some_bodies() -> list[dict[str, Any]]:
    """Thirteen of the fifty requests, one token to 1,500."""
    bodies = [ask_of(index, length) for index, length in enumerate(LENGTHS)]
    return [*bodies[::4][:-1], bodies[-1]]


@pytest.fixture(scope="session")
def asked(oracle: Front) -> Asked:
    """Fifty requests of eight kinds over the tiny model, and the colocated answers."""
    bodies = [ask_of(index, length) for index, length in enumerate(LENGTHS)]
    return asked_alone(oracle, bodies, {"layout": "auto"})
