"""Bytes between two fake engines: a hand-off goes on as if it had never been, and what is lost or mixed up shows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.engine import Engine
from contracts.errors import ConfigError
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.fake import FakeEngine, fake_layout, fake_spec

SPEC = fake_spec(vocab_size=997, max_context=256, num_layers=3, num_kv_heads=2, head_dim=4)
PROMPT = tuple((37 * index + 5) % 990 + 3 for index in range(45))
START = SequenceStart("a", PROMPT, SamplingParams(temperature=0.0))
TABLE = (9, 2, 11, 4, 7, 1)
OTHER_TABLE = (3, 0, 8, 5, 10, 6)


def _engine(block_size: int = 8, num_blocks: int = 12) -> FakeEngine:
    return FakeEngine(SPEC, fake_layout(SPEC, block_size=block_size), num_blocks)


def _pool(engine: Engine) -> Any:
    """The KV memory as float32 [num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]."""
    layout = engine.kv_layout
    assert engine.kv_memory is not None
    shape = (layout.num_layers, engine.num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    return np.frombuffer(engine.kv_memory, dtype=np.float32).reshape(shape)


def _prefilled(engine: FakeEngine, cuts: tuple[int, ...] = (45,)) -> int:
    """The first token of the sequence, prefilled in chunks that end at `cuts`."""
    first = 0
    for cut in cuts:
        chunk = Chunk("a", PROMPT[first:cut], first, TABLE, samples=cut == 45)
        result = engine.step(Batch(step_index=0, phase=Phase.PREFILL, chunks=(chunk,), started=(START,)))
        first = cut
    return result.sampled[0].token_id


def _decoded(engine: FakeEngine, first_token: int, count: int, table: tuple[int, ...]) -> list[int]:
    """`count` tokens, of which the first is known, continued in an engine that only has the KV of the prompt."""
    tokens = [first_token]
    start = SequenceStart("a", PROMPT, START.sampling, (first_token,))
    while len(tokens) < count:
        chunk = Chunk("a", (tokens[-1],), len(PROMPT) + len(tokens) - 1, table, samples=True)
        tokens.append(
            engine.step(Batch(step_index=0, phase=Phase.DECODE, chunks=(chunk,), started=(start,))).sampled[0].token_id
        )
    return tokens


@pytest.mark.parametrize("cuts", [(45,), (16, 32, 45), (7, 8, 30, 45)])
def test_a_sequence_goes_on_from_its_bytes_as_if_it_had_stayed(cuts: tuple[int, ...]) -> None:
    sender, receiver = _engine(), _engine(num_blocks=16)
    first = _prefilled(sender, cuts)
    _pool(receiver)[:, list(OTHER_TABLE)] = _pool(sender)[:, list(TABLE)]
    output = _decoded(receiver, first, 4, OTHER_TABLE)
    assert output == _decoded(sender, first, 4, TABLE) == list(_engine().expected_output(START, 4))
    assert (sender.faults, receiver.faults) == ([], [])


def test_blocks_can_be_cut_into_blocks_of_another_size() -> None:
    sender, receiver = _engine(block_size=8), _engine(block_size=16)
    first = _prefilled(sender)
    for to, pair in ((5, TABLE[0:2]), (1, TABLE[2:4]), (7, TABLE[4:6])):
        _pool(receiver)[:, to] = np.concatenate([_pool(sender)[:, block] for block in pair], axis=3)
    assert _decoded(receiver, first, 4, (5, 1, 7)) == list(_engine().expected_output(START, 4))
    assert receiver.faults == []


def _lose_a_block_of_one_layer(pool: Any) -> None:
    pool[1, OTHER_TABLE[2]] = 0


def _flip_a_bit(pool: Any) -> None:
    pool.view(np.uint32)[2, OTHER_TABLE[5], 1, 1, 4, 3] ^= 1


def _swap_layers(pool: Any) -> None:
    pool[[0, 1], OTHER_TABLE[0]] = pool[[1, 0], OTHER_TABLE[0]]


def _swap_blocks(pool: Any) -> None:
    pool[:, list(OTHER_TABLE[:2])] = pool[:, list(OTHER_TABLE[1::-1])]


def _swap_keys_and_values(pool: Any) -> None:
    pool[2, OTHER_TABLE[3]] = pool[2, OTHER_TABLE[3], ::-1].copy()


@pytest.mark.parametrize(
    ("spoil", "told"),
    [
        (_lose_a_block_of_one_layer, "position 16 (block 8)"),
        (_flip_a_bit, "position 44 (block 6)"),
        (_swap_layers, "position 0 (block 3)"),
        (_swap_blocks, "position 0 (block 3)"),
        (_swap_keys_and_values, "position 24 (block 5)"),
    ],
)
def test_wrong_bytes_change_the_next_token_and_are_named(spoil: Callable[[Any], None], told: str) -> None:
    sender, receiver = _engine(), _engine()
    first = _prefilled(sender)
    _pool(receiver)[:, list(OTHER_TABLE)] = _pool(sender)[:, list(TABLE)]
    spoil(_pool(receiver))
    output = _decoded(receiver, first, 2, OTHER_TABLE)
    assert output[1] != _engine().expected_output(START, 2)[1]
    assert told in receiver.faults[0]


def test_bytes_that_change_later_are_found_within_a_few_tokens() -> None:
    spec = fake_spec(vocab_size=997, max_context=256, num_layers=6, num_kv_heads=2, head_dim=8)
    engine = FakeEngine(spec, fake_layout(spec, block_size=8), 40)
    table = tuple(range(32))
    prompt = tuple(range(3, 203))
    start = SequenceStart("a", prompt, SamplingParams(temperature=0.0))
    chunk = Chunk("a", prompt, 0, table, samples=True)
    tokens = [
        engine.step(Batch(step_index=0, phase=Phase.MIXED, chunks=(chunk,), started=(start,))).sampled[0].token_id
    ]
    _pool(engine).view(np.uint32)[5, 20, 1, 0, 2, 3] ^= 1
    for position in range(200, 256):
        chunk = Chunk("a", (tokens[-1],), position, table, samples=True)
        tokens.append(engine.step(Batch(step_index=0, phase=Phase.MIXED, chunks=(chunk,))).sampled[0].token_id)
    assert "position 162 (block 20)" in engine.faults[0]
    assert tuple(tokens[:57]) != engine.expected_output(start, 57)


def test_layers_are_announced_one_by_one_and_share_out_the_step() -> None:
    told: list[str] = []
    engine = FakeEngine(
        SPEC,
        fake_layout(SPEC, block_size=8),
        12,
        step_seconds=lambda _batch: 0.3,
        sleep=lambda seconds: told.append(f"{seconds:.1f} s"),
    )

    def layer_done(layer: int) -> None:
        filled = [bool(_pool(engine)[at, list(TABLE[:5])].view(np.uint32).all()) for at in range(3)]
        assert filled == [at <= layer for at in range(3)]
        told.append(f"layer {layer}")

    chunk = Chunk("a", PROMPT, 0, TABLE, samples=True)
    engine.step(Batch(step_index=0, phase=Phase.PREFILL, chunks=(chunk,), started=(START,)), layer_done)
    assert told == ["0.1 s", "layer 0", "0.1 s", "layer 1", "0.1 s", "layer 2"]
    engine.step(Batch(step_index=1, phase=Phase.PREFILL, chunks=(), ended=("a",)), layer_done)
    assert told[6:] == ["0.3 s"]


def test_a_chunk_goes_on_from_what_another_chunk_of_the_step_writes() -> None:
    engine = _engine()
    other = SequenceStart("b", (*PROMPT[:16], 7, 7), START.sampling)
    chunks = (Chunk("a", PROMPT, 0, TABLE, True), Chunk("b", (7, 7), 16, (*TABLE[:2], 0), True))
    result = engine.step(Batch(step_index=0, phase=Phase.MIXED, chunks=chunks, started=(START, other)))
    assert (result.sampled[1].token_id,) == engine.expected_output(other, 1)
    assert engine.faults == []


def test_the_memory_is_page_aligned_and_as_large_as_the_layout_says() -> None:
    for engine in (_engine(), FakeEngine(SPEC, fake_layout(SPEC, dtype="bfloat16"), 5, prefault=True)):
        memory = engine.kv_memory
        layout = engine.kv_layout
        assert memory.nbytes == layout.num_layers * engine.num_blocks * layout.block_bytes_per_layer
        assert (memory.format, memory.ndim, memory.readonly, memory.contiguous) == ("B", 1, False, True)
        assert np.frombuffer(memory, dtype=np.uint8).ctypes.data % 4096 == 0
        assert not np.frombuffer(memory, dtype=np.uint8).any()
        assert (engine.device, engine.numerics) == ("fake", "fake")


def test_a_layout_of_broken_cells_is_refused_by_name() -> None:
    spec = fake_spec(head_dim=3)
    with pytest.raises(ConfigError, match="a head of 3 float32 numbers"):
        FakeEngine(spec, fake_layout(spec), 4)
