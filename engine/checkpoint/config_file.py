"""config.json (and generation_config.json) of a Hugging Face-style directory as a `ModelSpec`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ModelError
from contracts.model import ModelSpec
from engine.checkpoint.json_file import read_json, read_optional_object
from engine.checkpoint.rope_config import rope_from_config, scaled_context


class _Config(msgspec.Struct, kw_only=True):
    """Fields that all families share, with transformers' own defaults for what a config.json may leave out."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    hidden_act: str = "silu"
    max_position_embeddings: int = 2048
    rms_norm_eps: float = 1e-6
    tie_word_embeddings: bool = False
    attention_bias: bool = False
    mlp_bias: bool = False
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = True
    max_window_layers: int = 0
    layer_types: list[str] | None = None
    quantization_config: dict[str, Any] | None = None


class _Llama(_Config, kw_only=True):
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    use_sliding_window: bool = False


class _Mistral(_Config, kw_only=True):
    num_key_value_heads: int | None = 8
    max_position_embeddings: int = 131072
    bos_token_id: int | None = 1
    eos_token_id: int | list[int] | None = 2
    sliding_window: int | None = 4096


class _Qwen2(_Config, kw_only=True):
    num_key_value_heads: int | None = 32
    max_position_embeddings: int = 32768
    sliding_window: int | None = 4096
    use_sliding_window: bool = False
    max_window_layers: int = 28


class _Qwen3(_Qwen2, kw_only=True):
    head_dim: int | None = 128


_FAMILIES: dict[str, type[_Config]] = {"llama": _Llama, "mistral": _Mistral, "qwen2": _Qwen2, "qwen3": _Qwen3}


def spec_from_config(directory: Path, name: str) -> ModelSpec:
    """The spec of the model in `directory`, without digest and without eos ids that only the tokenizer names.

    A sliding window is not computed: where layers would really slide (mistral with `sliding_window`; qwen2 and qwen3
    with `use_sliding_window`), `max_context` is clipped to the window, within which sliding and full attention are
    the same. Raises `ModelError` naming file, field and value.
    """
    path = directory / "config.json"
    raw = read_json(path, dict[str, Any])
    family = raw.get("model_type")
    if family not in _FAMILIES:
        raise ModelError(f"{path}: model_type {family!r} is not supported (supported: {', '.join(_FAMILIES)})")
    try:
        config = msgspec.convert(raw, _FAMILIES[family])
    except msgspec.ValidationError as error:
        raise ModelError(f"{path}: {error}") from error
    num_kv_heads = config.num_key_value_heads or config.num_attention_heads
    _check(config, num_kv_heads, path)
    theta, scaling = rope_from_config(raw, config.max_position_embeddings, str(path))
    return ModelSpec(
        name=name,
        family=family,
        vocab_size=config.vocab_size,
        hidden_size=config.hidden_size,
        intermediate_size=config.intermediate_size,
        num_layers=config.num_hidden_layers,
        num_heads=config.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=config.head_dim or config.hidden_size // config.num_attention_heads,
        rms_norm_eps=config.rms_norm_eps,
        rope_theta=theta,
        rope_scaling=scaling,
        max_context=_max_context(config, scaled_context(scaling, config.max_position_embeddings), path),
        tie_word_embeddings=config.tie_word_embeddings,
        attention_bias=family == "qwen2" or (family != "mistral" and config.attention_bias),
        attention_output_bias=family in {"llama", "qwen3"} and config.attention_bias,
        mlp_bias=family == "llama" and config.mlp_bias,
        qk_norm=family == "qwen3",
        bos_token_id=config.bos_token_id,
        eos_token_ids=_eos_ids(config, directory),
    )


def _check(config: _Config, num_kv_heads: int, path: Path) -> None:
    for field in (
        "vocab_size",
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ):
        if getattr(config, field) <= 0:
            raise ModelError(f"{path}: {field} {getattr(config, field)!r} is not positive")
    if config.quantization_config is not None:
        method = config.quantization_config.get("quant_method")
        raise ModelError(f"{path}: quantization_config with quant_method {method!r} is not supported")
    if config.hidden_act not in {"silu", "swish"}:
        raise ModelError(f"{path}: hidden_act {config.hidden_act!r} is not supported, only 'silu' is")
    if config.rms_norm_eps <= 0:
        raise ModelError(f"{path}: rms_norm_eps {config.rms_norm_eps!r} is not positive")
    heads = config.num_attention_heads
    if num_kv_heads < 0 or heads % num_kv_heads:
        raise ModelError(f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {num_kv_heads}")
    if config.head_dim is None and config.hidden_size % heads:
        raise ModelError(f"{path}: hidden_size {config.hidden_size} is not a multiple of num_attention_heads {heads}")
    head_dim = config.head_dim or config.hidden_size // heads
    if head_dim <= 0 or head_dim % 2:
        raise ModelError(f"{path}: head_dim {head_dim!r} is not a positive even number")


def _max_context(config: _Config, positions: int, path: Path) -> int:
    if config.layer_types is not None:
        unknown = set(config.layer_types) - {"full_attention", "sliding_attention"}
        if unknown:
            raise ModelError(f"{path}: layer_types has {min(unknown)!r}, which is not supported")
        slides = "sliding_attention" in config.layer_types
    else:
        slides = config.use_sliding_window and config.max_window_layers < config.num_hidden_layers
    if slides and config.sliding_window:
        return min(positions, config.sliding_window)
    return positions


def _eos_ids(config: _Config, directory: Path) -> tuple[int, ...]:
    path = directory / "generation_config.json"
    found: list[int] = []
    for value, where in (
        (read_optional_object(path).get("eos_token_id"), path),
        (config.eos_token_id, directory / "config.json"),
    ):
        for token_id in value if isinstance(value, list) else [value]:
            if token_id is None or token_id in found:
                continue
            if not isinstance(token_id, int) or not 0 <= token_id < config.vocab_size:
                raise ModelError(f"{where}: eos_token_id {token_id!r} is not a token id below {config.vocab_size}")
            found.append(token_id)
    return tuple(found)
