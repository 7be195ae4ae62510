"""Invariant 3 inside one process: two replicas with a real engine over `loopback` say what one of them says alone.

The same prompts as over the other transports (`tests/system/pd/test_pd_greedy.py`): 1 to 1,500 tokens, sixteen at
once; here every chunk size with every pair of block sizes, with and without prefix cache.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save_file

from contracts import wire
from contracts.engine import Engine
from contracts.handoff import DecodeLeg, Peer, PrefillLeg
from contracts.kv import Fingerprint
from contracts.model import ModelSpec
from contracts.phase import Role
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason, Request, SamplingParams
from contracts.views import ReplicaIdentity, StepCost
from engine.build import assemble_engine
from engine.config import EngineConfig
from engine.sampling.sampler import Sampler
from kvtransfer.config import TransferConfig
from replica.config import ReplicaConfig
from replica.data_plane import data_plane
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_core import ReplicaCore

VOCAB = 500
SPEC = ModelSpec(
    name="tiny", family="llama", vocab_size=VOCAB, hidden_size=64, intermediate_size=128, num_layers=2, num_heads=4,
    num_kv_heads=2, head_dim=16, rms_norm_eps=1e-5, rope_theta=1e4, max_context=2048, tie_word_embeddings=False,
)  # fmt: skip
MATRICES = {
    "self_attn.q_proj": (64, 64), "self_attn.k_proj": (32, 64), "self_attn.v_proj": (32, 64),
    "self_attn.o_proj": (64, 64), "mlp.gate_proj": (128, 64), "mlp.up_proj": (128, 64), "mlp.down_proj": (64, 128),
}  # fmt: skip
COST = StepCost(a0=1e-3, a1=1e-5, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
LENGTHS = (
    *(1, 2, 3, 5, 7, 8, 13, 15, 16, 17, 23, 31, 32, 33, 40, 47, 48, 49, 60, 63, 64, 65, 80, 96, 100, 111, 127, 128),
    *(129, 150, 177, 200, 222, 255, 256, 257, 300, 333, 400, 480, 512, 513, 640, 700, 777, 900, 1024, 1100, 1300),
    1500,
)
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 0.0, "max_tokens": 64},
    {"temperature": 0.0, "max_tokens": 32, "logprobs": 5},
    {"temperature": 0.9, "top_p": 0.9, "seed": 11, "max_tokens": 32},
    {"temperature": 0.0, "max_tokens": 16, "logprobs": 0, "prompt_logprobs": 2},
    {"temperature": 0.7, "seed": 3, "frequency_penalty": 0.8, "repetition_penalty": 1.2, "max_tokens": 32},
)
BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4
DEADLINE_S = 120.0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Random ones, the same each time."""
    draw = np.random.default_rng(4)
    shapes = {"model.embed_tokens": (VOCAB, 64), "lm_head": (VOCAB, 64)}
    shapes |= {f"model.layers.{layer}.{name}": shape for layer in range(2) for name, shape in MATRICES.items()}
    tensors = {f"{name}.weight": draw.normal(0, 0.25, shape).astype(np.float32) for name, shape in shapes.items()}
    norms = [f"model.layers.{layer}.{name}_layernorm" for layer in range(2) for name in ("input", "post_attention")]
    tensors |= {f"{name}.weight": np.ones(64, np.float32) for name in [*norms, "model.norm"]}
    path = tmp_path_factory.mktemp("loopback") / "model.safetensors"
    save_file(tensors, path)
    return path


def requests(step: int = 1) -> list[Request]:
    made = []
    for index, length in list(enumerate(LENGTHS))[::step]:
        draw = random.Random(length)
        prompt = tuple(draw.randrange(3, VOCAB) for _ in range(length))
        sampling = SamplingParams(**{"ignore_eos": True, **KINDS[index % len(KINDS)]})
        made.append(Request(request_id=f"{length}", prompt_token_ids=prompt, sampling=sampling))
    return made


class Lab:
    """Starts replicas of the tiny model in this process and is their router."""

    def __init__(self, weights: Path, start_shell: Any, connect_router: Any, planes: AsyncExitStack) -> None:
        self._weights = weights
        self._start_shell = start_shell
        self._connect = connect_router
        self._planes = planes
        self.shells: list[Any] = []

    def _engine(self, block_size: int) -> Engine:
        sampler = Sampler(SPEC.vocab_size, SPEC.eos_token_ids, 0)
        config = EngineConfig(block_size=block_size, num_blocks=24576 // block_size, device="cpu")
        return assemble_engine(SPEC, [self._weights], config, sampler)

    async def start(self, name: str, role: Role, block_size: int, core: ReplicaCoreConfig) -> Any:
        """Its identity and a connection to it."""
        engine = self._engine(block_size)
        identity = ReplicaIdentity(
            replica_id=name, incarnation=f"{name} 1", version="0", model=SPEC, num_blocks=engine.num_blocks,
            fingerprint=Fingerprint(model_digest="", layout=engine.kv_layout, numerics=engine.numerics),
            max_running=core.max_running, max_waiting=core.max_waiting,
        )  # fmt: skip
        transfer = TransferConfig(secret="only for this test", transport="loopback", host="127.0.0.1")
        config = ReplicaConfig(replica_id=name, role=role, transfer=transfer)
        identity, moves = await self._planes.enter_async_context(data_plane(config, engine, identity))
        made = ReplicaCore(core, role, engine.kv_layout, engine.num_blocks, SPEC.max_context, (), COST)
        shell = self._start_shell(
            core=made, engine=engine, identity=identity, transfer=moves, router_silence_s=2 * DEADLINE_S
        )
        self.shells.append(shell)
        return identity, await self._connect(shell.endpoint)

    async def ended(self) -> None:
        for shell in self.shells:
            shell.shutdown.drain("the test is over")
            assert "drained" in await shell.ended()
            shell.engine.close()


@pytest.fixture
async def lab(weights: Path, start_shell: Any, connect_router: Any) -> Any:
    async with AsyncExitStack() as planes:
        lab = Lab(weights, start_shell, connect_router, planes)
        yield lab
        await lab.ended()


def whole(client: Any, request: Request) -> tuple[Any, ...]:
    """What one replica said about a request."""
    outputs: list[SequenceOutput] = client.outputs(request.request_id)
    ids = [token for output in outputs for token in output.token_ids]
    logprobs = [entry for output in outputs for entry in output.logprobs]
    prompt = [entry for output in outputs for part in output.prompt_logprobs for entry in part.entries]
    return ids, logprobs, prompt, outputs[-1].finish


async def alone(lab: Lab, asked: list[Request]) -> list[tuple[Any, ...]]:
    """Each by itself, its prompt whole, in one replica."""
    core = ReplicaCoreConfig(admission="sarathi(4096)", max_chunk=4096, prefix_cache=False)
    _, client = await lab.start("one", Role.MIXED, 16, core)
    for request in asked:
        await client.send(wire.Submit(requests=(request,)))
        await client.wait_end(request.request_id, DEADLINE_S)
    return [whole(client, request) for request in asked]


async def over_a_pair(lab: Lab, asked: list[Request], blocks: tuple[int, int], core: ReplicaCoreConfig) -> Any:
    """All at once, as far as the decode replica takes them in; the answers, and both last views."""
    _, giver = await lab.start("p", Role.PREFILL, blocks[0], core)
    taking, taker = await lab.start("d", Role.DECODE, blocks[1], core)
    peer = Peer(
        replica_id="d",
        incarnation=taking.incarnation,
        endpoints=taking.data_endpoints,
        fingerprint=taking.fingerprint,
    )
    await giver.send(wire.Peers(peers=(peer,)))
    await giver.wait_view(lambda view: any(link.bytes_per_s for link in view.links))
    leg = DecodeLeg(prefill_replica_id="p", expected_s=20.0, link_bytes_per_s=1e8)
    await taker.send(wire.Submit(requests=tuple(decode_leg(request, leg) for request in asked)))
    listening = asyncio.create_task(giver.read_until_silence(DEADLINE_S))
    left, by_id = {request.request_id for request in asked}, {request.request_id: request for request in asked}
    async with asyncio.timeout(DEADLINE_S):
        while left:
            match await taker.read():
                case wire.Reserved(request_id=request_id, ticket=ticket):
                    sends = msgspec.structs.replace(by_id[request_id], leg=PrefillLeg(ticket=ticket))
                    await giver.send(wire.Submit(requests=(sends,)))
                case wire.Outputs(outputs=outputs):
                    left -= {output.request_id for output in outputs if output.finish is not None}
                case wire.Refused(error=error):
                    raise AssertionError(error.message)
    while not listening.done():  # `wait_for` swallows a cancellation that comes together with a message
        listening.cancel()
        await asyncio.wait([listening], timeout=0.05)
    answers = [merged(giver, taker, request) for request in asked]
    views = [await client.wait_view(lambda view: view.free_blocks == view.num_blocks) for client in (giver, taker)]
    return answers, *views


def decode_leg(request: Request, leg: DecodeLeg) -> Request:
    """As a router sends it: the prefill leg alone tells about the prompt."""
    sampling = msgspec.structs.replace(request.sampling, prompt_logprobs=None)
    return msgspec.structs.replace(request, sampling=sampling, leg=leg)


def merged(giver: Any, taker: Any, request: Request) -> tuple[Any, ...]:
    """The decode replica says every output token; the first one both, alike."""
    first, first_logprobs, prompt, handed = whole(giver, request)
    ids, logprobs, none, finish = whole(taker, request)
    assert handed is FinishReason.HANDED_OVER
    assert (first, first_logprobs, none) == (ids[:1], logprobs[:1], [])
    return ids, logprobs, prompt, finish


def same(mine: list[tuple[Any, ...]], theirs: list[tuple[Any, ...]], asked: list[Request]) -> None:
    for (ids, logprobs, prompt, finish), (w_ids, w_logprobs, w_prompt, w_finish), request in zip(
        mine, theirs, asked, strict=True
    ):
        assert (ids, finish) == (w_ids, w_finish), f"prompt of {request.request_id}, {request.sampling}"
        assert len(ids) == request.sampling.max_tokens
        for entry, wanted in zip([*logprobs, *prompt], [*w_logprobs, *w_prompt], strict=True):
            assert (entry is None) == (wanted is None)
            if wanted is not None:
                assert entry.token_id == wanted.token_id
                assert abs(entry.logprob - wanted.logprob) < 1e-3


async def compare(lab: Lab, asked: list[Request], chunk: int, blocks: tuple[int, int], cache: bool) -> None:
    wanted = await alone(lab, asked)
    core = ReplicaCoreConfig(
        admission=f"sarathi({max(chunk, 64)})", min_chunk=min(chunk, 32), max_chunk=chunk, prefix_cache=cache
    )
    answers, gave, took = await over_a_pair(lab, asked, blocks, core)
    same(answers, wanted, asked)
    tokens = sum(len(request.prompt_token_ids) for request in asked)
    assert (gave.prompt_tokens_computed, took.prompt_tokens_computed) == (tokens, 0)
    assert gave.kv_bytes_out == took.kv_bytes_in >= 0.9 * tokens * BYTES_PER_TOKEN
    assert [link.transport for link in gave.links] == ["loopback"]


async def test_some_requests_over_loopback(lab: Lab) -> None:
    await compare(lab, requests(7), 16, (16, 32), True)


def cases() -> Iterator[tuple[int, tuple[int, int], bool]]:
    for chunk in (16, 128, 4096):
        for blocks in ((16, 16), (16, 32), (32, 16)):
            yield from ((chunk, blocks, cache) for cache in (True, False))


@pytest.mark.slow
@pytest.mark.parametrize(("chunk", "blocks", "cache"), list(cases()))
async def test_fifty_requests_over_loopback(lab: Lab, chunk: int, blocks: tuple[int, int], cache: bool) -> None:
    await compare(lab, requests(), chunk, blocks, cache)
