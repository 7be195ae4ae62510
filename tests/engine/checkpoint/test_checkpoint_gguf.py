"""GGUF files written here come back as the model they were written from; wrong ones are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, RopeScalingType, dequantize, quantize
from safetensors.numpy import load_file
from safetensors.torch import load_file as load_torch_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

from contracts.errors import ModelError
from engine.checkpoint.resolve import resolve_model

MakeDirectory = Callable[..., Path]
MakeGGUF = Callable[..., Path]
FAMILIES = ["llama", "qwen2", "qwen3"]
F16, F32, BF16 = GGMLQuantizationType.F16, GGMLQuantizationType.F32, GGMLQuantizationType.BF16
Q4_0, Q8_0 = GGMLQuantizationType.Q4_0, GGMLQuantizationType.Q8_0


@pytest.fixture(scope="module")
def saved(hf_model: MakeDirectory) -> dict[str, Path]:
    return {family: hf_model(family) for family in FAMILIES}


@pytest.mark.parametrize("kind", [F32, F16, Q8_0, Q4_0])
@pytest.mark.parametrize("family", FAMILIES)
def test_weights_survive_the_round_trip(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path, family: str, kind: GGMLQuantizationType
) -> None:
    original = load_file(saved[family] / "model.safetensors")
    files = resolve_model(str(gguf_model(saved[family], family, kind)), cache_dir=tmp_path)
    restored = load_file(files.weight_files[0])
    assert restored.keys() == original.keys()
    for name, values in original.items():
        expected = values if values.ndim == 1 else dequantize(quantize(values, kind), kind)
        np.testing.assert_array_equal(restored[name].astype(np.float32), expected, err_msg=name)
    assert {str(values.dtype) for values in restored.values()} == {"float32", "float16" if kind == F16 else "float32"}


def test_bfloat16_is_copied_bit_by_bit(saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path) -> None:
    original = load_torch_file(saved["llama"] / "model.safetensors")
    files = resolve_model(str(gguf_model(saved["llama"], "llama", BF16)), cache_dir=tmp_path)
    restored = load_torch_file(files.weight_files[0])
    name = "model.layers.0.self_attn.q_proj.weight"
    assert restored[name].dtype == torch.bfloat16
    assert torch.equal(restored[name], original[name].to(torch.bfloat16))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_spec_and_the_logits_are_those_of_the_original(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path, family: str
) -> None:
    def with_head_dim(writer: GGUFWriter) -> None:
        writer.add_key_length(16)
        writer.add_value_length(16)
        writer.add_rope_dimension_count(16)

    original = resolve_model(str(saved[family]))
    path = gguf_model(saved[family], family, edit=with_head_dim)
    converted = resolve_model(str(path), cache_dir=tmp_path)
    assert converted.served_name == "tiny"
    assert converted.spec.digest == original.spec.digest
    assert converted.chat_template == original.chat_template
    assert resolve_model(str(path.parent), cache_dir=tmp_path).spec.digest == original.spec.digest
    ids = torch.arange(3, 40)[None]
    with torch.no_grad():
        expected = AutoModelForCausalLM.from_pretrained(saved[family])(ids).logits
        assert torch.equal(AutoModelForCausalLM.from_pretrained(converted.directory)(ids).logits, expected)
    assert PreTrainedTokenizerFast.from_pretrained(converted.directory).eos_token == "<|im_end|>"


def test_permuted_biases_and_tied_embeddings(hf_model: MakeDirectory, gguf_model: MakeGGUF, tmp_path: Path) -> None:
    directory = hf_model("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True)
    files = resolve_model(str(gguf_model(directory, "llama")), cache_dir=tmp_path)
    assert files.spec.digest == resolve_model(str(directory)).spec.digest
    assert files.spec.tie_word_embeddings
    restored = load_file(files.weight_files[0])
    for name, values in load_file(directory / "model.safetensors").items():
        np.testing.assert_array_equal(restored[name], values, err_msg=name)


@pytest.mark.parametrize(("factor", "high", "original"), [(8.0, 4.0, 8192), (32.0, 4.0, 8192), (4.0, 6.0, 64)])
def test_llama3_scaling_is_recovered_from_its_divisors(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path, factor: float, high: float, original: int
) -> None:
    wavelength = 2 * np.pi * 10000.0 ** (np.arange(0, 16, 2) / 16)
    smooth = np.clip((original / wavelength - 1) / (high - 1), 0, 1)
    divisors = (1 / ((1 - smooth) / factor + smooth)).astype(np.float32)
    path = gguf_model(saved["llama"], "llama", edit=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))
    scaling = resolve_model(str(path), cache_dir=tmp_path).spec.rope_scaling
    assert (scaling.rope_type, scaling.factor, scaling.low_freq_factor) == ("llama3", factor, 1.0)
    assert scaling.original_max_position_embeddings is not None
    blend = (scaling.original_max_position_embeddings / wavelength - 1) / (scaling.high_freq_factor - 1)
    np.testing.assert_allclose(np.clip(blend, 0, 1), smooth, atol=2e-3)


def test_divisors_that_are_no_llama3_scaling_are_refused(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path
) -> None:
    divisors = np.array([1, 3, 1, 5, 1, 7, 1, 8], np.float32)
    path = gguf_model(saved["llama"], "llama", edit=lambda writer: writer.add_tensor("rope_freqs.weight", divisors))
    with pytest.raises(ModelError, match=r"rope_freqs.weight is no Llama 3 scaling"):
        resolve_model(str(path), cache_dir=tmp_path)


def test_rope_scaling_keys(saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path) -> None:
    def yarn(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(RopeScalingType.YARN)
        writer.add_rope_scaling_factor(4.0)
        writer.add_rope_scaling_orig_ctx_len(64)
        writer.add_rope_scaling_yarn_beta_fast(16.0)

    spec = resolve_model(str(gguf_model(saved["qwen2"], "qwen2", edit=yarn)), cache_dir=tmp_path).spec
    assert (spec.rope_scaling.rope_type, spec.rope_scaling.factor, spec.rope_scaling.beta_fast) == ("yarn", 4.0, 16.0)
    assert (spec.rope_scaling.original_max_position_embeddings, spec.max_context) == (64, 256)

    def linear(writer: GGUFWriter) -> None:
        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(2.0)

    spec = resolve_model(str(gguf_model(saved["llama"], "llama", edit=linear)), cache_dir=tmp_path).spec
    assert (spec.rope_scaling.rope_type, spec.rope_scaling.factor) == ("linear", 2.0)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_sliding_window_clips_the_context(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path, family: str
) -> None:
    path = gguf_model(saved[family], family, edit=lambda writer: writer.add_sliding_window(100))
    assert resolve_model(str(path), cache_dir=tmp_path).spec.max_context == 100


def test_end_of_turn_tokens_are_eos_ids(saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path) -> None:
    path = gguf_model(saved["llama"], "llama", edit=lambda writer: writer.add_uint32("tokenizer.ggml.eot_token_id", 7))
    assert resolve_model(str(path), cache_dir=tmp_path).spec.eos_token_ids == (2, 7)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda w: w.add_expert_count(8), "llama.expert_count is 8: mixtures of experts are not supported"),
        (lambda w: w.add_uint16("split.count", 2), "split.count is 2: merge the parts"),
        (lambda w: w.add_rope_scaling_type(RopeScalingType.LONGROPE), "rope.scaling.type 'longrope' is not supported"),
        (lambda w: w.add_rope_dimension_count(8), "rope.dimension_count 8 differs from the head size 16"),
        (lambda w: w.add_tensor("blk.0.attn_sinks.weight", np.ones(4, np.float32)), "'blk.0.attn_sinks.weight' is not"),
        (lambda w: w.add_tensor("blk.5.ffn_up.weight", np.ones((96, 64), np.float32)), "layers.5.mlp.up_proj.weight'"),
    ],
)
def test_what_the_engine_cannot_run_is_refused_before_weights_are_written(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path, edit: Callable[[GGUFWriter], None], message: str
) -> None:
    path = gguf_model(saved["llama"], "llama", edit=edit)
    with pytest.raises(ModelError, match=message) as refusal:
        resolve_model(str(path), cache_dir=tmp_path)
    assert str(path) in refusal.value.message
    assert not list(tmp_path.glob("gguf/*/*"))


def test_an_unknown_architecture_and_a_missing_tensor(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=r"general.architecture 'gemma3' is not supported \(supported: llama, mistral"):
        resolve_model(str(gguf_model(saved["llama"], "gemma3")), cache_dir=tmp_path)
    with pytest.raises(ModelError, match=r"tensor 'model.layers.1.mlp.up_proj.weight' is missing"):
        resolve_model(str(gguf_model(saved["llama"], "llama", drop=("blk.1.ffn_up.weight",))), cache_dir=tmp_path)


def test_damaged_files_are_refused(saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path) -> None:
    whole = gguf_model(saved["llama"], "llama").read_bytes()
    path = tmp_path / "damaged.gguf"
    damages = {
        b"": "the file is empty",
        b"GGML" + whole[4:]: "not a GGUF file",
        whole[:4] + b"\x09\0\0\0" + whole[8:]: "GGUF version 9 is not supported",
        whole[:-100]: "the file is truncated: tensor 'output_norm.weight' ends at",
        whole[:300]: "truncated or corrupt",
        whole[:8] + b"\xff" * 8 + whole[16:]: "truncated or corrupt",
        whole[:24] + b"\xff" * 8 + whole[32:]: "truncated or corrupt",
    }
    for content, message in damages.items():
        path.write_bytes(content)
        with pytest.raises(ModelError, match=message) as refusal:
            resolve_model(str(path), cache_dir=tmp_path / "cache")
        assert str(path) in refusal.value.message


def test_any_flipped_header_byte_gives_a_model_or_a_named_error(
    saved: dict[str, Path], gguf_model: MakeGGUF, tmp_path: Path
) -> None:
    """Nothing but `ModelError` may come out of a corrupt header."""
    whole = gguf_model(saved["llama"], "llama").read_bytes()
    path = tmp_path / "flipped.gguf"
    random = np.random.default_rng(0)
    refused = 0
    for position in random.integers(4, 1200, 60):
        damaged = bytearray(whole)
        damaged[position] ^= int(random.integers(1, 256))
        path.write_bytes(damaged)
        try:
            resolve_model(str(path), cache_dir=tmp_path / "cache")
        except ModelError as error:
            assert str(path) in error.message  # noqa: PT017 - either outcome is right
            refused += 1
    assert refused > 20
