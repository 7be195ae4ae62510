"""Paged attention against the formula, whatever the grouping, and whatever old blocks contain."""

from __future__ import annotations

import pytest
import torch

from contracts.batch import Batch, Chunk
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from contracts.phase import Phase
from engine.attention import SdpaAttention
from engine.kv_cache import KVCache, gather_blocks
from engine.step_inputs import build_step_inputs

CPU = torch.device("cpu")
HEADS, KV_HEADS, HEAD_DIM, BLOCK = 6, 2, 8, 4
LAYOUT = KVLayout(num_layers=1, num_kv_heads=KV_HEADS, head_dim=HEAD_DIM, block_size=BLOCK, dtype="float32")
SPEC = ModelSpec(
    name="attention",
    family="llama",
    vocab_size=10,
    hidden_size=HEADS * HEAD_DIM,
    intermediate_size=8,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    max_context=1000,
    tie_word_embeddings=True,
)
# (rows, context): decodes, first chunks, later chunks
SEQUENCES = [(1, 1), (1, 9), (5, 5), (3, 20), (1, 40), (4, 8), (1, 16), (17, 33)]


def batch_of(sequences: list[tuple[int, int]]) -> Batch:
    """Sequences over blocks in descending order, so that the table matters."""
    chunks, next_block = [], 63
    for index, (rows, context) in enumerate(sequences):
        count = -(-context // BLOCK)
        table = tuple(range(next_block, next_block - count, -1))
        next_block -= count
        chunks.append(Chunk(str(index), (0,) * rows, context - rows, table, True))
    return Batch(step_index=0, phase=Phase.MIXED, chunks=tuple(chunks))


def by_the_formula(query: torch.Tensor, cache: torch.Tensor, batch: Batch) -> torch.Tensor:
    """softmax(q k / sqrt(d)) v, one row and one head at a time."""
    out, row = torch.empty_like(query), 0
    for chunk in batch.chunks:
        for offset in range(len(chunk.token_ids)):
            seen = [(chunk.block_table[p // BLOCK], p % BLOCK) for p in range(chunk.start + offset + 1)]
            for head in range(HEADS):
                keys = torch.stack([cache[block, 0, head // (HEADS // KV_HEADS), place] for block, place in seen])
                values = torch.stack([cache[block, 1, head // (HEADS // KV_HEADS), place] for block, place in seen])
                weights = torch.softmax(keys @ query[row, head] / HEAD_DIM**0.5, dim=0)
                out[row, head] = weights @ values
            row += 1
    return out.flatten(1)


@pytest.mark.parametrize("max_gathered_tokens", [1, 50, 10_000])
def test_attention_follows_the_formula(max_gathered_tokens: int) -> None:
    torch.manual_seed(0)
    batch = batch_of(SEQUENCES)
    cache = torch.randn(64, 2, KV_HEADS, BLOCK, HEAD_DIM)
    query = torch.randn(batch.num_tokens, HEADS, HEAD_DIM)
    inputs = build_step_inputs(batch, LAYOUT, 64, SPEC, CPU)
    attend = SdpaAttention(BLOCK, max_gathered_tokens).plan(inputs, torch.float32)
    torch.testing.assert_close(attend(query, cache), by_the_formula(query, cache, batch), atol=1e-5, rtol=1e-5)


def test_what_an_earlier_owner_left_in_a_block_does_not_leak() -> None:
    torch.manual_seed(0)
    batch = batch_of(SEQUENCES)
    cache = KVCache(LAYOUT, 64, CPU)
    written = torch.zeros(64, BLOCK, dtype=torch.bool)
    for chunk in batch.chunks:
        for position in range(chunk.start + len(chunk.token_ids)):
            written[chunk.block_table[position // BLOCK], position % BLOCK] = True
    cache.layers[0].normal_()
    query = torch.randn(batch.num_tokens, HEADS, HEAD_DIM)
    attend = SdpaAttention(BLOCK).plan(build_step_inputs(batch, LAYOUT, 64, SPEC, CPU), torch.float32)
    want = attend(query, cache.layers[0])
    cache.layers[0].masked_fill_(~written[:, None, None, :, None], float("nan"))
    assert torch.equal(attend(query, cache.layers[0]), want)


def test_cache_writes_by_slot_and_reads_by_table() -> None:
    cache = KVCache(LAYOUT, 4, CPU)
    assert cache.layers[0].shape == (4, 2, KV_HEADS, BLOCK, HEAD_DIM)
    keys, values = torch.randn(3, KV_HEADS, HEAD_DIM), torch.randn(3, KV_HEADS, HEAD_DIM)
    cache.write(0, torch.tensor([2, 2, 0]), torch.tensor([3, 1, 0]), keys, values)
    got_keys, got_values = gather_blocks(cache.layers[0], torch.tensor([[2, 0]]))
    for row, position in enumerate((3, 1, BLOCK)):
        assert torch.equal(got_keys[0, :, position], keys[row])
        assert torch.equal(got_values[0, :, position], values[row])
    assert int(cache.layers[0].count_nonzero()) == keys.numel() + values.numel()
