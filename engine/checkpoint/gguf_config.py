"""GGUF metadata as config.json and generation_config.json."""

from __future__ import annotations

from typing import Any

from contracts.errors import ModelError
from engine.checkpoint.gguf_file import GGUFFile
from engine.checkpoint.gguf_rope import rope_parameters, shortest

_MODEL_TYPES = {"llama": "llama", "mistral": "llama", "qwen2": "qwen2", "qwen3": "qwen3"}
_CLASSES = {"llama": "LlamaForCausalLM", "mistral": "MistralForCausalLM"}
_CLASSES |= {"qwen2": "Qwen2ForCausalLM", "qwen3": "Qwen3ForCausalLM"}
_END_OF_TURN = ("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>")
_CONTROL = 3


def architecture_of(file: GGUFFile) -> str:
    """The file's architecture. Raises `ModelError` when it is not one of ours, is split, or has experts."""
    name: str = file.required("general.architecture", str)
    if name not in _MODEL_TYPES:
        supported = ", ".join(_MODEL_TYPES)
        raise ModelError(f"{file.path}: general.architecture {name!r} is not supported (supported: {supported})")
    experts = file.optional(f"{name}.expert_count", int)
    if experts:
        raise ModelError(f"{file.path}: {name}.expert_count is {experts}: mixtures of experts are not supported")
    parts = file.optional("split.count", int)
    if parts and parts > 1:
        raise ModelError(f"{file.path}: split.count is {parts}: merge the parts into one GGUF file first")
    return name


def head_counts(file: GGUFFile, architecture: str) -> tuple[int, int]:
    """Query heads and key-value heads."""
    heads: int = file.required(f"{architecture}.attention.head_count", int)
    kv_heads: int = file.optional(f"{architecture}.attention.head_count_kv", int) or heads
    if heads <= 0 or kv_heads <= 0:
        raise ModelError(f"{file.path}: {architecture}.attention.head_count {heads} / {kv_heads} is not positive")
    return heads, kv_heads


def config_from_gguf(file: GGUFFile) -> dict[str, Any]:
    """The content of config.json; `rope_theta` stands in both spellings (transformers 4 and 5)."""
    architecture = architecture_of(file)
    heads, kv_heads = head_counts(file, architecture)
    hidden: int = file.required(f"{architecture}.embedding_length", int)
    head_dim: int = file.optional(f"{architecture}.attention.key_length", int) or hidden // heads
    _check_head_dim(file, architecture, head_dim)
    embedding = file.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelError(f"{file.path}: tensor 'token_embd.weight' is missing")
    num_tokens = len(file.required("tokenizer.ggml.tokens", list))
    if num_tokens > embedding.shape[0]:
        raise ModelError(f"{file.path}: {num_tokens} tokens but only {embedding.shape[0]} rows in token_embd.weight")
    theta = shortest(file.optional(f"{architecture}.rope.freq_base", float) or 10000.0)
    window = file.optional(f"{architecture}.attention.sliding_window", int) or None
    model_type = _MODEL_TYPES[architecture]
    if window and model_type == "llama":
        model_type = "mistral"
    config: dict[str, Any] = {
        "architectures": [_CLASSES[model_type]],
        "model_type": model_type,
        "vocab_size": embedding.shape[0],
        "hidden_size": hidden,
        "intermediate_size": file.required(f"{architecture}.feed_forward_length", int),
        "num_hidden_layers": file.required(f"{architecture}.block_count", int),
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": file.required(f"{architecture}.context_length", int),
        "rms_norm_eps": shortest(file.required(f"{architecture}.attention.layer_norm_rms_epsilon", float)),
        "rope_theta": theta,
        "rope_parameters": rope_parameters(file, architecture, theta, head_dim),
        "tie_word_embeddings": "output.weight" not in file.tensors,
        "attention_bias": "blk.0.attn_output.bias" in file.tensors,
        "mlp_bias": "blk.0.ffn_gate.bias" in file.tensors,
        "sliding_window": window,
        "bos_token_id": file.optional("tokenizer.ggml.bos_token_id", int),
        "eos_token_id": eos_ids(file),
        "pad_token_id": file.optional("tokenizer.ggml.padding_token_id", int),
    }
    if model_type in {"qwen2", "qwen3"}:
        config |= {"use_sliding_window": bool(window), "max_window_layers": 0}
    return config


def _check_head_dim(file: GGUFFile, architecture: str, head_dim: int) -> None:
    for key in ("attention.value_length", "rope.dimension_count"):
        value = file.optional(f"{architecture}.{key}", int)
        if value not in {None, 0, head_dim}:
            raise ModelError(f"{file.path}: {architecture}.{key} {value} differs from the head size {head_dim}")


def eos_ids(file: GGUFFile) -> list[int]:
    """Ids that end an answer: the named ones, and control tokens that chat models write at the end of a turn."""
    tokens: list[str] = file.required("tokenizer.ggml.tokens", list)
    types: list[int] = file.optional("tokenizer.ggml.token_type", list) or []
    named = [file.optional(f"tokenizer.ggml.{name}_token_id", int) for name in ("eos", "eot", "eom")]
    turns = [i for i, kind in enumerate(types[: len(tokens)]) if kind == _CONTROL and tokens[i] in _END_OF_TURN]
    return list(dict.fromkeys(token_id for token_id in (*named, *turns) if token_id is not None))
