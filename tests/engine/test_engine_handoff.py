"""KV of one engine as bytes in another: the sequence goes on there bit for bit, sampler included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contracts.batch import Batch, Chunk, SampledToken, SequenceStart
from contracts.engine import Engine
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.build import assemble_engine
from engine.config import EngineConfig
from engine.sampling.sampler import Sampler

TABLE = (9, 2, 17, 4, 7)
OTHER_TABLE = (3, 0, 21, 5, 10)
COUNT = 10
LENGTH = 50

SAMPLED = SamplingParams(
    temperature=0.9,
    top_k=40,
    top_p=0.95,
    seed=11,
    max_tokens=COUNT,
    min_tokens=6,
    stop_token_ids=tuple(range(40)),
    repetition_penalty=1.3,
    frequency_penalty=0.4,
    presence_penalty=0.3,
    logit_bias={5: 2.0},
    logprobs=3,
)
GREEDY = SamplingParams(temperature=0.0, max_tokens=COUNT, logprobs=3)
UNSEEDED = SamplingParams(temperature=1.0, max_tokens=COUNT, logprobs=1)

MakeEngine = Callable[..., Engine]


@pytest.fixture
def make_engine(make_tiny: Any, executor: str) -> MakeEngine:
    """`make_engine(**config)`: engines of one model, 32 blocks of 16 tokens unless configured otherwise."""
    model = make_tiny("Qwen3", head_dim=16)

    def make(**config: Any) -> Engine:
        chosen = EngineConfig(**{"device": "cpu", "num_blocks": 32, "executor": executor, **config})
        sampler = Sampler(model.spec.vocab_size, model.spec.eos_token_ids, 0)
        return assemble_engine(model.spec, model.weight_files, chosen, sampler)

    return make


def _pool(engine: Engine) -> Any:
    """The KV memory as float32 [num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]."""
    layout = engine.kv_layout
    assert engine.kv_memory is not None
    shape = (layout.num_layers, engine.num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    return np.frombuffer(engine.kv_memory, dtype=np.float32).reshape(shape)


def _prefilled(engine: Engine, start: SequenceStart, chunk_size: int) -> SampledToken:
    """The first output token; the prompt in chunks of `chunk_size`."""
    prompt = start.prompt_token_ids
    for first in range(0, len(prompt), chunk_size):
        part = prompt[first : first + chunk_size]
        chunk = Chunk(start.sequence_id, part, first, TABLE, samples=first + len(part) == len(prompt))
        result = engine.step(Batch(step_index=0, phase=Phase.PREFILL, chunks=(chunk,), started=(start,)))
    return result.sampled[0]


def _decoded(
    engine: Engine, start: SequenceStart, first: SampledToken, table: tuple[int, ...]
) -> tuple[SampledToken, ...]:
    """All output tokens, the first of which is given."""
    output = [first]
    while len(output) < COUNT:
        position = len(start.prompt_token_ids) + len(output) - 1
        chunk = Chunk(start.sequence_id, (output[-1].token_id,), position, table, samples=True)
        result = engine.step(Batch(step_index=0, phase=Phase.DECODE, chunks=(chunk,), started=(start,)))
        output.append(result.sampled[0])
    return tuple(output)


def _continued(start: SequenceStart, first: SampledToken) -> SequenceStart:
    return SequenceStart(start.sequence_id, start.prompt_token_ids, start.sampling, (first.token_id,))


@pytest.mark.parametrize("chunk_size", [1, 7, 16, LENGTH])
@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_a_sequence_goes_on_in_another_engine_bit_for_bit(
    quantization: str, chunk_size: int, make_engine: MakeEngine, tokens: Any
) -> None:
    here, sender, receiver = (make_engine(quantization=quantization) for _ in range(3))
    for name, sampling in (("g", GREEDY), ("s", SAMPLED), ("u", UNSEEDED)):
        start = SequenceStart(name, tuple(tokens(LENGTH, 5)), sampling)
        expected = _decoded(here, start, _prefilled(here, start, chunk_size), TABLE)
        _pool(receiver)[:] = 9.9  # what other sequences left behind
        first = _prefilled(sender, start, chunk_size)
        _pool(receiver)[:, list(OTHER_TABLE)] = _pool(sender)[:, list(TABLE)]
        assert _decoded(receiver, _continued(start, first), first, OTHER_TABLE) == expected
        assert len({token.token_id for token in expected}) > 1
        assert not {token.token_id for token in expected[:6]} & set(sampling.stop_token_ids)


def test_the_engine_that_does_not_know_the_first_token_samples_something_else(
    make_engine: MakeEngine, tokens: Any
) -> None:
    engine = make_engine()
    start = SequenceStart("s", tuple(tokens(LENGTH, 5)), SAMPLED)
    first = _prefilled(engine, start, LENGTH)
    kept = _pool(engine).copy()
    right = _decoded(engine, start, first, TABLE)
    other = make_engine()
    _pool(other)[:] = kept
    assert _decoded(other, start, first, TABLE) != right


def test_blocks_of_16_can_be_cut_into_blocks_of_32(make_engine: MakeEngine, tokens: Any, executor: str) -> None:
    here, sender, receiver = make_engine(), make_engine(), make_engine(block_size=32, num_blocks=16)
    start = SequenceStart("s", tuple(tokens(LENGTH, 5)), SAMPLED)
    expected = _decoded(here, start, _prefilled(here, start, 16), TABLE)
    first = _prefilled(sender, start, 16)
    for to, pair in ((6, TABLE[:2]), (1, TABLE[2:4])):
        _pool(receiver)[:, to] = np.concatenate([_pool(sender)[:, block] for block in pair], axis=3)
    output = _decoded(receiver, _continued(start, first), first, (6, 1))
    assert [token.token_id for token in output] == [token.token_id for token in expected]
    for token, want in zip(output, expected, strict=True):
        assert token.logprobs is not None
        assert want.logprobs is not None
        # torch's attention sums over padded blocks, in another order: the last bits differ.
        exact = executor == "native"
        assert token.logprobs.logprob == pytest.approx(want.logprobs.logprob, abs=0.0 if exact else 1e-5, rel=0.0)


def test_the_memory_is_one_page_aligned_allocation(make_engine: MakeEngine) -> None:
    for prefault in (False, True):
        engine = make_engine(prefault=prefault)
        memory, layout = engine.kv_memory, engine.kv_layout
        assert memory is not None
        assert memory.nbytes == layout.num_layers * engine.num_blocks * layout.block_bytes_per_layer
        assert (memory.format, memory.ndim, memory.readonly, memory.contiguous) == ("B", 1, False, True)
        array = np.frombuffer(memory, dtype=np.uint8)
        assert array.ctypes.data % 4096 == 0
        assert not array.any()
        engine.close()
        assert engine.kv_memory is None


def test_what_changes_values_is_named(make_engine: MakeEngine, executor: str) -> None:
    plain, int8 = make_engine(), make_engine(quantization="int8")
    assert (plain.device, plain.numerics) == ("cpu", f"none weights, {executor} executor")
    assert int8.numerics == f"int8 weights, {executor} executor"
