"""Weights are fused as documented, read layer by layer, and a bad file is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.errors import ModelError
from engine.weights import DecoderWeights, load_weights

CPU = torch.device("cpu")


def load(model: Any, files: list[Path] | None = None, dtype: torch.dtype = torch.float32) -> DecoderWeights:
    return load_weights(model.spec, files or model.weight_files, CPU, dtype)


def edited(model: Any, to: Path, **changes: torch.Tensor | None) -> list[Path]:
    """The model's tensors in one file, with some replaced or (None) left out; `__` stands for a dot."""
    tensors = load_file(model.weight_files[0])
    for name, tensor in changes.items():
        if tensor is None:
            del tensors[name.replace("__", ".")]
        else:
            tensors[name.replace("__", ".")] = tensor
    save_file(tensors, to / "edited.safetensors")
    return [to / "edited.safetensors"]


def test_fused_matrices_hold_the_parts_in_order(make_tiny: Any) -> None:
    model = make_tiny("Llama", attention_bias=True, mlp_bias=True)
    found = load(model).layers[1]
    layer = model.reference.model.layers[1]
    attention, mlp = layer.self_attn, layer.mlp
    for part in ("weight", "bias"):
        qkv = torch.cat([getattr(getattr(attention, f"{which}_proj"), part) for which in "qkv"])
        gate_up = torch.cat([getattr(mlp.gate_proj, part), getattr(mlp.up_proj, part)])
        suffix = "" if part == "weight" else "_bias"
        assert torch.equal(getattr(found, f"qkv{suffix}"), qkv)
        assert torch.equal(getattr(found, f"gate_up{suffix}"), gate_up)
        assert torch.equal(getattr(found, f"o{suffix}"), getattr(attention.o_proj, part))
        assert torch.equal(getattr(found, f"down{suffix}"), getattr(mlp.down_proj, part))
    assert found.q_norm is None


def test_norms_tying_and_dtype(make_tiny: Any) -> None:
    model = make_tiny("Qwen3", head_dim=16, tie_word_embeddings=True)
    weights = load(model, dtype=torch.bfloat16)
    assert weights.lm_head is weights.embedding
    assert weights.embedding.dtype == torch.bfloat16
    layers = list(weights.layers)
    assert len(layers) == len(weights.layers) == model.spec.num_layers
    reference = model.reference.model.layers[2]
    assert layers[2].q_norm is not None
    assert layers[2].k_norm is not None
    assert torch.equal(layers[2].q_norm, reference.self_attn.q_norm.weight.bfloat16())
    assert torch.equal(layers[2].k_norm, reference.self_attn.k_norm.weight.bfloat16())
    assert torch.equal(layers[2].post_norm, reference.post_attention_layernorm.weight.bfloat16())
    assert layers[2].qkv_bias is None
    with pytest.raises(IndexError):
        weights.layers[model.spec.num_layers]


def test_layers_are_not_kept(make_tiny: Any) -> None:
    weights = load(make_tiny("Llama"))
    assert weights.layers[0].qkv.data_ptr() != weights.layers[0].qkv.data_ptr()


def test_missing_tensor_is_named(make_tiny: Any, tmp_path: Path) -> None:
    model = make_tiny("Llama")
    files = edited(model, tmp_path, model__layers__1__mlp__up_proj__weight=None)
    with pytest.raises(ModelError, match=r"model\.layers\.1\.mlp\.up_proj\.weight.*edited\.safetensors"):
        list(load(model, files).layers)


def test_wrong_shape_and_wrong_dtype_are_named(make_tiny: Any, tmp_path: Path) -> None:
    model = make_tiny("Llama")
    files = edited(model, tmp_path, model__norm__weight=torch.ones(7))
    with pytest.raises(ModelError, match=r"model\.norm\.weight has shape \[7\]"):
        load(model, files)
    files = edited(model, tmp_path, model__norm__weight=torch.ones(64, dtype=torch.int8))
    with pytest.raises(ModelError, match="int8"):
        load(model, files)


def test_truncated_or_absent_file_is_named(make_tiny: Any, tmp_path: Path) -> None:
    model = make_tiny("Llama")
    cut = tmp_path / "cut.safetensors"
    cut.write_bytes(model.weight_files[0].read_bytes()[:-100])
    for path in (cut, tmp_path / "absent.safetensors"):
        with pytest.raises(ModelError, match=path.name):
            load(model, [path])


def test_untied_model_without_lm_head_is_refused(make_tiny: Any) -> None:
    model = make_tiny("Qwen2", tie_word_embeddings=True)
    untied = msgspec.structs.replace(model.spec, tie_word_embeddings=False)
    with pytest.raises(ModelError, match=r"lm_head\.weight"):
        load_weights(untied, model.weight_files, CPU, torch.float32)
