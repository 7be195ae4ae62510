"""The change of basis before int8: orthogonal, the same at every load, and exact."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.attention import SdpaAttention
from engine.executor import LayerExecutor, StepInputs
from engine.kv_cache import KVCache
from engine.linear import MakeLinear, choose_linear, plain_linear
from engine.native_executor import NativeCpuExecutor
from engine.rope import build_rope_table
from engine.rotation import Rotation, rotate_for_int8, rotation_of
from engine.torch_executor import TorchExecutor
from engine.weights import DecoderWeights, load_weights

CPU = torch.device("cpu")
LENGTH = 21
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "llama, biases everywhere": ("Llama", {"attention_bias": True, "mlp_bias": True}),
    "llama, 9 * 8 wide": ("Llama", {"hidden_size": 72, "head_dim": 16, "tie_word_embeddings": True}),
    "qwen2": ("Qwen2", {}),
    "qwen2, tied": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("Qwen3", {"head_dim": 24}),
    "qwen3, tied, biases": ("Qwen3", {"head_dim": 16, "tie_word_embeddings": True, "attention_bias": True}),
}


def dense(rotation: Rotation) -> torch.Tensor:
    """The matrix itself, float64."""
    return torch.diag(rotation.signs).double() @ torch.kron(rotation.left.double(), rotation.right.double())


@pytest.mark.parametrize("size", [1, 2, 7, 64, 72, 576, 896, 2048])
def test_it_is_orthogonal_and_spreads_every_channel(size: int) -> None:
    matrix = dense(rotation_of(size, 0, CPU))
    odd_part = size // (size & -size)
    assert torch.allclose(matrix @ matrix.t(), torch.eye(size).double(), atol=1e-6)
    assert matrix.abs().max() <= (2.0 / odd_part if odd_part > 1 else 1.0) ** 0.5 / (size / odd_part) ** 0.5 + 1e-6


@pytest.mark.parametrize("size", [7, 64, 72])
def test_rows_and_columns_are_products_with_the_matrix(size: int) -> None:
    rotation = rotation_of(size, 3, CPU)
    x = torch.randn(5, size, generator=torch.Generator().manual_seed(0))
    want = (x.double() @ dense(rotation)).float()
    assert torch.allclose(rotation.rows(x), want, atol=1e-5)
    assert torch.allclose(rotation.rows(x[2]), want[2], atol=1e-5)
    assert torch.allclose(rotation.columns(x.t()), want.t(), atol=1e-5)
    assert rotation.columns(x.t()).is_contiguous()


def test_the_seed_decides() -> None:
    one, same, other = (rotation_of(64, seed, CPU) for seed in (1, 1, 2))
    assert torch.equal(one.signs, same.signs)
    assert not torch.equal(one.signs, other.signs)


def opened(model: Any) -> DecoderWeights:
    return load_weights(model.spec, model.weight_files, CPU, torch.float32)


def executor_of(
    name: str, weights: DecoderWeights, spec: ModelSpec, make_linear: MakeLinear = plain_linear
) -> tuple[LayerExecutor, KVCache]:
    layout = KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=LENGTH,
        dtype="float32",
    )
    cache = KVCache(layout, 1, CPU)
    rope = build_rope_table(spec, LENGTH, CPU)
    if name == "native":
        return NativeCpuExecutor(weights, spec, rope, cache), cache
    return TorchExecutor(weights, spec, rope, cache, make_linear, SdpaAttention(LENGTH)), cache


def run(
    name: str, weights: DecoderWeights, model: Any, tokens: list[int], make_linear: MakeLinear = plain_linear
) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Logits of every position of one prompt, and the KV that it leaves."""
    executor, cache = executor_of(name, weights, model.spec, make_linear)
    inputs = StepInputs(
        token_ids=torch.tensor(tokens),
        positions=torch.arange(LENGTH, dtype=torch.int32),
        row_sequence=torch.zeros(LENGTH, dtype=torch.int32),
        query_start=torch.tensor([0, LENGTH], dtype=torch.int32),
        context_len=torch.tensor([LENGTH], dtype=torch.int32),
        block_table=torch.zeros(1, 1, dtype=torch.int32),
        slots=torch.arange(LENGTH),
        max_query=LENGTH,
        max_context=LENGTH,
    )
    with torch.inference_mode():
        hidden = executor.run_layers(executor.embed(inputs), inputs, 0, model.spec.num_layers)
        return executor.logits(hidden), list(cache.layers)


def relative_error(got: torch.Tensor, want: torch.Tensor) -> float:
    return float((got - want).abs().max() / want.abs().max())


@pytest.mark.parametrize("case", FAMILIES)
def test_a_rotated_model_has_the_same_logits_and_the_same_kv(
    case: str, executor: str, make_tiny: Any, tokens: Any
) -> None:
    family, overrides = FAMILIES[case]
    model = make_tiny(family, **overrides)
    prompt = tokens(LENGTH, seed=5)
    want, want_kv = run(executor, opened(model), model, prompt)
    got, got_kv = run(executor, rotate_for_int8(opened(model), model.spec, seed=11), model, prompt)
    assert relative_error(got, want) <= 1e-4
    for mine, theirs in zip(got_kv, want_kv, strict=True):
        assert relative_error(mine, theirs) <= 1e-4


def test_int8_survives_a_channel_that_is_far_larger_than_the_rest(make_tiny: Any, tokens: Any) -> None:
    """As in real models: one channel of the stream is huge, and the matrices that read it hardly look at it."""
    model = make_tiny("Llama")
    weights = opened(model)
    layers = list(weights.layers)
    weights.embedding[:, 5] = 50.0
    for matrix in (weights.lm_head, *(each for layer in layers for each in (layer.qkv, layer.gate_up))):
        matrix[:, 5] = 0.0
    weights = replace(weights, layers=layers)
    prompt, int8 = tokens(LENGTH, seed=6), choose_linear(CPU, torch.float32, "int8")
    want, _ = run("torch", weights, model, prompt)
    plain, _ = run("torch", weights, model, prompt, int8)
    rotated, _ = run("torch", rotate_for_int8(weights, model.spec), model, prompt, int8)
    assert relative_error(rotated, want) < 0.5 * relative_error(plain, want)


def test_every_part_is_in_the_new_basis_and_keeps_its_form(make_tiny: Any) -> None:
    model = make_tiny("Qwen3", head_dim=16, tie_word_embeddings=True, attention_bias=True)
    before, after = opened(model), rotate_for_int8(opened(model), model.spec)
    assert before.lm_head is before.embedding
    assert not torch.equal(after.lm_head, after.embedding)
    assert torch.equal(after.final_norm, torch.ones(model.spec.hidden_size))
    assert len(after.layers) == len(before.layers)
    assert torch.allclose(after.embedding.norm(dim=1), before.embedding.norm(dim=1), rtol=1e-5)
    for old, new in zip(before.layers, after.layers, strict=True):
        assert torch.equal(new.input_norm, torch.ones_like(old.input_norm))
        assert torch.equal(new.post_norm, torch.ones_like(old.post_norm))
        assert new.q_norm is not None
        assert old.q_norm is not None
        assert torch.equal(new.q_norm, old.q_norm)
        for name in ("qkv", "o", "gate_up", "down"):
            mine, theirs = getattr(new, name), getattr(old, name)
            assert mine.shape == theirs.shape
            assert mine.is_contiguous()
            assert not torch.allclose(mine, theirs)


def test_down_and_its_input_are_balanced(make_tiny: Any) -> None:
    model = make_tiny("Llama", mlp_bias=True)
    layer = rotate_for_int8(opened(model), model.spec).layers[0]
    gate, up = layer.gate_up.norm(dim=1).chunk(2)
    assert torch.allclose(gate * up, layer.down.norm(dim=0), rtol=1e-4)


def test_dead_channels_of_the_feed_forward_part_stay_finite(make_tiny: Any) -> None:
    model = make_tiny("Llama")
    weights = opened(model)
    layers = list(weights.layers)
    ffn = model.spec.intermediate_size
    layers[0].gate_up[[0, ffn + 1]] = 0.0
    layers[0].down[:, 2] = 0.0
    rotated = rotate_for_int8(replace(weights, layers=layers), model.spec).layers[0]
    assert rotated.gate_up.isfinite().all()
    assert rotated.down.isfinite().all()
    for dead, channel in ((rotated.gate_up, 0), (rotated.gate_up, ffn + 1), (rotated.down.t(), 2)):
        assert not dead[channel].any()


def test_layers_are_the_same_by_index_slice_and_iteration_and_at_every_load(make_tiny: Any) -> None:
    model = make_tiny("Llama", tie_word_embeddings=True)
    rotated, again = (rotate_for_int8(opened(model), model.spec, seed=4) for _ in range(2))
    iterated = list(again.layers)
    assert torch.equal(rotated.embedding, again.embedding)
    assert torch.equal(rotated.lm_head, again.lm_head)
    assert torch.equal(rotated.layers[1].down, iterated[1].down)
    assert torch.equal(rotated.layers[1:][0].gate_up, iterated[1].gate_up)


def test_a_bfloat16_model_gets_float32_matrices_to_quantise(make_tiny: Any) -> None:
    model = make_tiny("Qwen2")
    weights = rotate_for_int8(load_weights(model.spec, model.weight_files, CPU, torch.bfloat16), model.spec)
    layer = weights.layers[0]
    assert weights.embedding.dtype == weights.final_norm.dtype == layer.input_norm.dtype == torch.bfloat16
    assert layer.qkv_bias is not None
    assert layer.qkv_bias.dtype == torch.bfloat16
    assert weights.lm_head.dtype == layer.down.dtype == layer.qkv.dtype == torch.float32
