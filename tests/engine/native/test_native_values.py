"""The compiled executor against plain torch on random models and steps; its results do not depend on the batch."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

SHAPES: dict[str, dict[str, Any]] = {
    "grouped by 3": {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64},
    "one KV head per query head": {"num_heads": 2, "num_kv_heads": 2, "head_dim": 96},
    "grouped by 4, odd widths": {
        "num_heads": 4,
        "num_kv_heads": 1,
        "head_dim": 80,
        "hidden_size": 53,
        "intermediate_size": 45,
    },
    "grouped by 8, biases, QK norm": {
        "num_heads": 8,
        "num_kv_heads": 1,
        "head_dim": 24,
        "qk_norm": True,
        "attention_bias": True,
        "attention_output_bias": True,
        "mlp_bias": True,
        "hidden_size": 70,
        "intermediate_size": 134,
    },
    "wide heads, small blocks": {"num_heads": 2, "num_kv_heads": 1, "head_dim": 128, "block_size": 8},
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("length", [1, 5, 37, 150])
def test_logits_equal_plain_torch(make_rig: Any, name: str, length: int) -> None:
    rig = make_rig(**SHAPES[name])
    executor, _ = rig.executor()
    tokens = rig.tokens(length, length)
    got = rig.run(executor, (tokens, 0, length, rig.blocks(1)))
    torch.testing.assert_close(got.double(), rig.reference(tokens), atol=1e-4, rtol=1e-4)


def test_a_mixed_step_equals_plain_torch(make_rig: Any) -> None:
    """A prompt, a chunk with past, and two decode rows together."""
    rig = make_rig(**SHAPES["grouped by 3"])
    executor, _ = rig.executor()
    blocks = rig.blocks(2)
    plan = [(30, 0), (140, 96), (17, 16), (130, 129)]  # (length, already in the cache)
    spans = []
    for index, (length, past) in enumerate(plan):
        tokens = rig.tokens(length, index)
        own = blocks[index * 10 : index * 10 + 10]
        if past:
            rig.run(executor, (tokens, 0, past, own))
        spans.append((tokens, past, length - past, own))
    want = torch.cat([rig.reference(span[0])[span[1] :] for span in spans])
    torch.testing.assert_close(rig.run(executor, *spans).double(), want, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("quantization", ["none", "int8"])
@pytest.mark.parametrize("name", SHAPES)
def test_chunking_does_not_change_a_bit(make_rig: Any, name: str, quantization: str) -> None:
    rig = make_rig(**SHAPES[name])
    tokens = rig.tokens(290, 5)  # three splits of attention
    whole = rig.run_in_chunks(rig.executor(quantization)[0], len(tokens), tokens)
    for chunk in (7, 16, 101):
        assert torch.equal(rig.run_in_chunks(rig.executor(quantization)[0], chunk, tokens), whole)


@pytest.mark.parametrize("quantization", ["none", "int8"])
def test_company_does_not_change_a_bit(make_rig: Any, quantization: str) -> None:
    """A decode row alone, and among 1 to 40 others: every tile height of the products is passed through."""
    rig = make_rig(**SHAPES["grouped by 3"])
    executor, _ = rig.executor(quantization)
    tokens = rig.tokens(20, 1)
    rig.run(executor, (tokens, 0, 20, [0, 1]))
    alone = rig.run(executor, (tokens, 19, 1, [0, 1]))
    for others in range(1, 41):
        company = (rig.tokens(others, others), 0, others, [40, 41, 42])
        assert torch.equal(rig.run(executor, company, (tokens, 19, 1, [0, 1]))[-1:], alone), others


def test_thread_count_does_not_change_a_bit(make_rig: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rig = make_rig(**SHAPES["grouped by 3"])
    tokens = rig.tokens(300, 4)
    single = rig.run_in_chunks(rig.executor()[0], 299, tokens)
    for threads in (2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        assert torch.equal(rig.run_in_chunks(rig.executor()[0], 299, tokens), single)


def test_layer_ranges_compose(make_rig: Any) -> None:
    rig = make_rig(num_layers=3, **SHAPES["grouped by 3"])
    tokens = rig.tokens(33, 2)
    inputs = rig.inputs((tokens, 0, 33, [5, 2, 9]))
    executor, _ = rig.executor()
    whole = executor.run_layers(executor.embed(inputs), inputs, 0, 3)
    hidden = executor.embed(inputs)
    for layer in range(3):
        hidden = executor.run_layers(hidden, inputs, layer, layer + 1)
    assert torch.equal(hidden, whole)


def test_only_named_slots_are_written(make_rig: Any) -> None:
    rig = make_rig(**SHAPES["wide heads, small blocks"])
    executor, cache = rig.executor()
    for layer in cache.layers:
        layer.fill_(float("nan"))  # stale memory must neither be read nor be written
    blocks = rig.blocks(7)[:3]
    logits = rig.run(executor, (rig.tokens(19, 0), 0, 19, blocks))
    assert bool(logits.isfinite().all())
    for layer in cache.layers:
        by_slot = layer.permute(0, 3, 1, 2, 4).reshape(cache.num_blocks * rig.block_size, -1)
        written = by_slot.isfinite().all(dim=1).nonzero().flatten().tolist()
        assert written == sorted(blocks[p // 8] * 8 + p % 8 for p in range(19))


def rounded(weight: torch.Tensor) -> torch.Tensor:
    """What int8 with a scale per output channel keeps of a weight."""
    scales = weight.abs().amax(dim=1, keepdim=True) / 127
    return (weight / scales).round() * scales


def test_int8_loses_nothing_but_the_rounding_of_weights(make_rig: Any) -> None:
    rig = make_rig(num_layers=3, seed=4, **SHAPES["grouped by 8, biases, QK norm"])
    tokens = rig.tokens(200, 8)
    got = rig.run(rig.executor("int8")[0], (tokens, 0, 200, rig.blocks(0))).double()
    layers = [
        replace(layer, **{name: rounded(getattr(layer, name)) for name in ("qkv", "o", "gate_up", "down")})
        for layer in rig.weights.layers
    ]
    weights = replace(rig.weights, layers=layers, lm_head=rounded(rig.weights.lm_head))
    torch.testing.assert_close(got, replace(rig, weights=weights).reference(tokens), atol=5e-3, rtol=5e-3)
    exact = rig.reference(tokens)
    assert 1e-3 < (got - exact).norm() / exact.norm() < 0.03
