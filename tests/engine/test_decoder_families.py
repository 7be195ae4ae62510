"""Every supported model family gives transformers' logits, in any chunking and any company."""

from __future__ import annotations

from typing import Any

import pytest
import torch

CLOSE = 1e-4

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10_000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN = {"rope_type": "yarn", "rope_theta": 10_000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LINEAR = {"rope_type": "linear", "rope_theta": 10_000.0, "factor": 2.0}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama, one KV head per query head": ("Llama", {"num_key_value_heads": 4}),
    "llama, grouped, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, one KV head, wide heads": ("Llama", {"num_key_value_heads": 1, "head_dim": 32}),
    "llama, biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, llama3 rope": ("Llama", {"rope_parameters": LLAMA3}),
    "llama, linear rope": ("Llama", {"rope_parameters": LINEAR}),
    "llama, dynamic rope": ("Llama", {"rope_parameters": DYNAMIC}),
    "llama, yarn rope": ("Llama", {"rope_parameters": YARN}),
    "mistral": ("Mistral", {"sliding_window": None}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3, tied, biases": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}


def worst(got: torch.Tensor, want: torch.Tensor) -> float:
    assert got.shape == want.shape
    return float((got - want).abs().max())


@pytest.mark.parametrize("case", CASES)
def test_whole_prompt_and_chunks_match_transformers(
    case: str, executor: str, make_tiny: Any, make_driver: Any, tokens: Any
) -> None:
    family, overrides = CASES[case]
    model = make_tiny(family, **overrides)
    driver = make_driver(model, executor=executor)
    prompt = tokens(75, seed=1)
    want = model.logits(prompt)
    for chunk in (75, 16, 7, 1):
        driver.start(f"by {chunk}", prompt)
        assert worst(driver.run(f"by {chunk}", chunk), want) <= CLOSE
        driver.end(f"by {chunk}")


@pytest.mark.parametrize("case", ["llama, grouped, tied", "qwen2", "qwen3"])
@pytest.mark.parametrize("block_size", [1, 4, 16, 128])
def test_a_batch_mixes_prefill_chunks_and_decodes(
    case: str, block_size: int, executor: str, make_tiny: Any, make_driver: Any, tokens: Any
) -> None:
    family, overrides = CASES[case]
    model = make_tiny(family, **overrides)
    driver = make_driver(model, executor=executor, block_size=block_size, num_blocks=512 // block_size + 8, seed=3)
    lengths = {"a": 70, "b": 33, "c": 17, "d": 1, "e": 64}
    for seed, (sequence_id, length) in enumerate(lengths.items()):
        driver.start(sequence_id, tokens(length, seed))
    driver.step({"a": 40})
    driver.step({"a": 1, "b": 20, "d": 1})
    driver.step({"b": 1, "c": 16, "a": 1, "e": 7})
    driver.step({"e": 50, "a": 26, "c": 1, "b": 1})
    driver.step({"a": 1, "b": 10, "e": 7})
    driver.step({"a": 1, "b": 1})
    for seed, sequence_id in enumerate(lengths):
        computed = driver.done[sequence_id]
        want = model.logits(tokens(lengths[sequence_id], seed))[:computed]
        assert computed > 0
        assert worst(driver.logits(sequence_id), want) <= CLOSE, sequence_id
