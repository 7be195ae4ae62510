"""Directories that transformers saved become specs, and every wrong one is refused with the file and the reason."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.numpy import load_file, save_file

from contracts.errors import ModelError
from engine.checkpoint.expected_tensors import expected_tensors
from engine.checkpoint.resolve import resolve_model
from engine.checkpoint.tensor_index import index_directory

MakeDirectory = Callable[..., Path]
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


@pytest.fixture(scope="module")
def saved(hf_model: MakeDirectory) -> dict[str, Path]:
    return {family: hf_model(family) for family in FAMILIES}


@pytest.fixture
def llama(saved: dict[str, Path], tmp_path: Path) -> Path:
    """A copy that the test may break."""
    return Path(shutil.copytree(saved["llama"], tmp_path / "model"))


def edit_config(directory: Path, file: str = "config.json", **fields: Any) -> None:
    config = json.loads((directory / file).read_text())
    config |= fields
    (directory / file).write_text(json.dumps({name: value for name, value in config.items() if value != "ABSENT"}))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_resolves_to_its_own_config(saved: dict[str, Path], family: str) -> None:
    files = resolve_model(str(saved[family]))
    spec = files.spec
    assert (spec.family, spec.vocab_size, spec.hidden_size, spec.intermediate_size) == (family, 512, 64, 96)
    assert (spec.num_layers, spec.num_heads, spec.num_kv_heads, spec.head_dim) == (2, 4, 2, 16)
    assert (spec.rope_theta, spec.rope_scaling.rope_type, spec.max_context) == (10000.0, "default", 256)
    assert (spec.bos_token_id, spec.eos_token_ids, spec.tie_word_embeddings) == (1, (2,), False)
    assert (spec.attention_bias, spec.attention_output_bias, spec.mlp_bias) == (family == "qwen2", False, False)
    assert spec.qk_norm == (family == "qwen3")
    assert len(spec.digest) == 32
    assert files.special_tokens.bos == "<|im_start|>"
    assert files.special_tokens.eos == "<|im_end|>"
    assert files.chat_template == "{{ messages[0]['content'] }}"
    assert not files.add_bos
    assert files.served_name == saved[family].name


@pytest.mark.parametrize("family", FAMILIES)
def test_expected_tensors_are_exactly_those_that_transformers_saves(saved: dict[str, Path], family: str) -> None:
    _, tensors = index_directory(saved[family])
    expected = expected_tensors(resolve_model(str(saved[family])).spec)
    assert {name: entry.shape for name, entry in tensors.items()} == expected


def test_biases_and_tied_embeddings(hf_model: MakeDirectory) -> None:
    spec = resolve_model(str(hf_model("llama", attention_bias=True, mlp_bias=True, tie_word_embeddings=True))).spec
    assert spec.attention_bias
    assert spec.attention_output_bias
    assert spec.mlp_bias
    assert spec.tie_word_embeddings
    spec = resolve_model(str(hf_model("qwen3", attention_bias=True))).spec
    assert spec.attention_bias
    assert spec.attention_output_bias


def test_shards_hold_the_same_model_as_one_file(hf_model: MakeDirectory, saved: dict[str, Path]) -> None:
    sharded = resolve_model(str(hf_model("qwen2", shard_size="100KB")))
    whole = resolve_model(str(saved["qwen2"]))
    assert len(sharded.weight_files) > 1
    assert sharded.spec.digest == whole.spec.digest
    names = {name for file in sharded.weight_files for name in load_file(file)}
    assert names == set(load_file(whole.weight_files[0]))


def test_the_digest_follows_weights_and_config_but_not_the_name(llama: Path, tmp_path: Path) -> None:
    before = resolve_model(str(llama)).spec.digest
    assert resolve_model(str(llama)).spec.digest == before
    moved = Path(shutil.copytree(llama, tmp_path / "other"))
    assert resolve_model(str(moved)).spec.digest == before
    weights = load_file(moved / "model.safetensors")
    weights["model.norm.weight"] = weights["model.norm.weight"] + 0.25
    save_file(weights, moved / "model.safetensors")
    assert resolve_model(str(moved)).spec.digest != before
    edit_config(llama, rms_norm_eps=1e-5)
    assert resolve_model(str(llama)).spec.digest != before


OLD_AND_NEW_ROPE = [
    ({"type": "linear", "factor": 2.0}, {"rope_type": "linear", "factor": 2.0}, 512),
    ({"type": "dynamic", "factor": 4}, {"rope_type": "dynamic", "factor": 4.0}, 1024),
    (
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16},
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 16.0},
        512,
    ),
    (
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
        256,
    ),
]


@pytest.mark.parametrize(("written", "expected", "context"), OLD_AND_NEW_ROPE)
def test_rope_scaling_in_both_spellings(
    llama: Path, written: dict[str, Any], expected: dict[str, Any], context: int
) -> None:
    edit_config(llama, rope_scaling=written, rope_theta=5e5, rope_parameters="ABSENT")
    old = resolve_model(str(llama)).spec
    edit_config(llama, rope_scaling="ABSENT", rope_theta="ABSENT", rope_parameters={**written, "rope_theta": 5e5})
    new = resolve_model(str(llama)).spec
    expected = {"original_max_position_embeddings": 256, **expected}
    assert expected.items() <= msgspec.to_builtins(old.rope_scaling).items()
    assert (old.rope_theta, old.max_context) == (5e5, context)
    assert new == old


def test_a_sliding_window_clips_the_context_where_layers_slide(saved: dict[str, Path], tmp_path: Path) -> None:
    def context(family: str, **fields: Any) -> int:
        directory = Path(shutil.copytree(saved[family], tmp_path / family, dirs_exist_ok=True))
        edit_config(directory, **{"layer_types": "ABSENT", **fields})
        return resolve_model(str(directory)).spec.max_context

    assert context("mistral", sliding_window=100) == 100
    assert context("mistral", sliding_window=None) == 256
    assert context("qwen2", sliding_window=100, use_sliding_window=False) == 256
    assert context("qwen2", sliding_window=100, use_sliding_window=True, max_window_layers=2) == 256
    assert context("qwen2", sliding_window=100, use_sliding_window=True, max_window_layers=1) == 100
    assert context("qwen2", sliding_window=100, layer_types=["full_attention", "sliding_attention"]) == 100
    assert context("llama", sliding_window=100) == 256


def test_eos_ids_are_collected_from_all_three_files(llama: Path) -> None:
    edit_config(llama, eos_token_id=[5, 6])
    edit_config(llama, "generation_config.json", eos_token_id=[7, 5])
    edit_config(llama, "tokenizer_config.json", eos_token={"content": "<|endoftext|>"})
    files = resolve_model(str(llama))
    assert files.spec.eos_token_ids == (7, 5, 6, 0)
    assert files.special_tokens.eos == "<|endoftext|>"


def test_the_post_processor_says_whether_bos_is_added(llama: Path) -> None:
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [],
        "special_tokens": {},
    }
    for post_processor, adds in (
        (template, True),
        ({"type": "Sequence", "processors": [template]}, True),
        (None, False),
    ):
        edit_config(llama, "tokenizer.json", post_processor=post_processor)
        assert resolve_model(str(llama)).add_bos is adds


def test_chat_templates_by_name_and_by_file(llama: Path) -> None:
    (llama / "chat_template.jinja").unlink(missing_ok=True)
    named = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    edit_config(llama, "tokenizer_config.json", chat_template=named)
    assert resolve_model(str(llama)).chat_template == "D"
    (llama / "chat_template.jinja").write_text("J")
    assert resolve_model(str(llama)).chat_template == "J"
    (llama / "chat_template.jinja").unlink()
    edit_config(llama, "tokenizer_config.json", chat_template="ABSENT")
    assert resolve_model(str(llama)).chat_template is None


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "mixtral"}, "model_type 'mixtral' is not supported"),
        ({"model_type": "ABSENT"}, "model_type None is not supported"),
        ({"hidden_size": "wide"}, r"config.json: Expected `int`, got `str` - at `\$.hidden_size`"),
        ({"hidden_size": "ABSENT"}, "missing required field `hidden_size`"),
        ({"num_hidden_layers": 0}, "num_hidden_layers 0 is not positive"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not supported"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"quantization_config": {"quant_method": "awq"}}, "quant_method 'awq' is not supported"),
        ({"rope_parameters": {"rope_type": "longrope", "factor": 2}}, "rope_type 'longrope' is not supported"),
        ({"rope_parameters": {"rope_type": "linear"}}, "rope_type 'linear' needs a factor"),
        ({"rope_parameters": {"rope_type": "linear", "factor": "2"}}, "rope settings: Expected `float`"),
        ({"rope_parameters": {"rope_type": "llama3", "factor": 8}}, "needs low_freq_factor"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 2, "mystery": 1}}, "rope setting 'mystery'"),
        ({"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor 0.5 is not supported"),
        ({"rope_parameters": {"rope_theta": -1}}, "rope_theta -1 is not a positive number"),
        ({"layer_types": ["full_attention", "chunked_attention"]}, "layer_types has 'chunked_attention'"),
        ({"eos_token_id": 512}, "eos_token_id 512 is not a token id below 512"),
        ({"num_hidden_layers": 3}, "tensor 'model.layers.2.input_layernorm.weight' is missing"),
        ({"num_hidden_layers": 1}, r"tensor 'model.layers.1.\S+' is not part of a llama model"),
        ({"attention_bias": True}, "tensor 'model.layers.0.self_attn.q_proj.bias' is missing"),
        ({"intermediate_size": 97}, r"gate_proj.weight' has shape \[96, 64\], expected \[97, 64\]"),
    ],
)
def test_a_config_that_cannot_be_served_is_refused(llama: Path, fields: dict[str, Any], message: str) -> None:
    edit_config(llama, **fields)
    with pytest.raises(ModelError, match=message) as refusal:
        resolve_model(str(llama))
    assert str(llama) in refusal.value.message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_refused(llama: Path, file: str) -> None:
    (llama / file).unlink()
    with pytest.raises(ModelError, match=f"{file}: the file is missing"):
        resolve_model(str(llama))


@pytest.mark.parametrize("file", ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"])
def test_corrupt_json_is_refused(llama: Path, file: str) -> None:
    (llama / file).write_text((llama / file).read_text()[:-20])
    with pytest.raises(ModelError, match=f"{llama / file}: "):
        resolve_model(str(llama))
    (llama / file).write_text("[]")
    with pytest.raises(ModelError, match=f"{llama / file}: Expected `object`"):
        resolve_model(str(llama))


def test_other_weight_formats_are_named(llama: Path) -> None:
    (llama / "model.safetensors").rename(llama / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"the file is missing.*found only pytorch_model.bin"):
        resolve_model(str(llama))


def test_names_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"no such model: neither a directory, nor a \.gguf file, nor one of: smollm2"):
        resolve_model(str(tmp_path / "nothing"))
    (tmp_path / "weights.pt").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"a model is a directory or a \.gguf file"):
        resolve_model(str(tmp_path / "weights.pt"))
    with pytest.raises(ModelError, match=r"config.json: the file is missing"):
        resolve_model(str(tmp_path))
