"""Tiny random models as Hugging Face directories, and the same models as GGUF files."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quantize
from numpy.typing import NDArray
from safetensors.numpy import load_file
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

Weights = dict[str, NDArray[Any]]
MakeDirectory = Callable[..., Path]
MakeGGUF = Callable[..., Path]

SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXT = [
    "The quick brown fox, it's 12345 dogs!\n\n  café naïve 你好 👩‍👩‍👧",
    "I'll don't 3.14 + 2,000 = x\t\ty",
    "hello world",
]
_SIZES: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_FAMILIES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,%d}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


def _byte_level_tokenizer(pre: str) -> Tokenizer:
    """A small BPE tokenizer trained with the words that `pre` stands for."""
    tokenizer = Tokenizer(models.BPE())
    if pre in {"llama-bpe", "qwen2"}:
        split = pre_tokenizers.Split(Regex(_WORDS % (3 if pre == "llama-bpe" else 1)), "isolated")
        level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, level])
        if pre == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
    else:
        level = pre_tokenizers.ByteLevel(add_prefix_space=False)
        digits = [pre_tokenizers.Digits(individual_digits=True)] if pre == "smollm" else []
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*digits, level])
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=SPECIALS, initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT * 3, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def byte_level_tokenizer() -> Callable[[str], Tokenizer]:
    return _byte_level_tokenizer


@pytest.fixture(scope="session")
def hf_model(tmp_path_factory: pytest.TempPathFactory) -> MakeDirectory:
    """`hf_model(family, shard_size=None, **config)` -> a new directory as transformers itself saves it."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=_byte_level_tokenizer("gpt-2"),
        bos_token="<|im_start|>",
        eos_token="<|im_end|>",
        unk_token="<|endoftext|>",
        chat_template="{{ messages[0]['content'] }}",
    )

    def make(family: str, *, shard_size: str | None = None, **config: Any) -> Path:
        directory = tmp_path_factory.mktemp(family)
        torch.manual_seed(0)
        head_dim = {"head_dim": 16} if family == "qwen3" else {}
        config_type, model_type = _FAMILIES[family]
        model = model_type(config_type(**{**_SIZES, **head_dim, **config}))
        for parameter in model.parameters():  # transformers begins with zeros and ones, which hide mistakes
            torch.nn.init.normal_(parameter, std=0.1)
        model.save_pretrained(directory, **({"max_shard_size": shard_size} if shard_size else {}))
        tokenizer.save_pretrained(directory)
        return directory

    return make


_GGUF_LAYER = {
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
_GGUF_TOP = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}


def _gguf_name(name: str) -> str:
    if name in _GGUF_TOP:
        return _GGUF_TOP[name]
    _, _, layer, *part, suffix = name.split(".")
    return f"blk.{layer}.{_GGUF_LAYER['.'.join(part)]}.{suffix}"


def _permuted(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Rows of a Llama q or k projection in the order that GGUF stores them."""
    halves = values.reshape(heads, 2, values.shape[0] // heads // 2, *values.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2).reshape(values.shape))


def _add_tokenizer(writer: GGUFWriter, tokenizer: Tokenizer, pre: str) -> None:
    model = json.loads(tokenizer.to_str())["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens)
    writer.add_token_types([3 if token in SPECIALS else 1 for token in tokens])
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template("{{ messages[0]['content'] }}")


@pytest.fixture(scope="session")
def gguf_model(tmp_path_factory: pytest.TempPathFactory) -> MakeGGUF:
    """`gguf_model(directory, architecture, kind)` -> the model of a Hugging Face directory as a GGUF file.

    `edit(writer)` may add keys or tensors; `drop` leaves GGUF tensors out; `tokenizer=False` leaves it to `edit`.
    """

    def make(
        directory: Path,
        architecture: str,
        kind: GGMLQuantizationType = GGMLQuantizationType.F32,
        *,
        pre: str = "gpt-2",
        edit: Callable[[GGUFWriter], None] = lambda writer: None,
        drop: tuple[str, ...] = (),
        tokenizer: bool = True,
    ) -> Path:
        path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
        weights: Weights = load_file(directory / "model.safetensors")
        writer = GGUFWriter(path, architecture)
        writer.add_context_length(256)
        writer.add_embedding_length(64)
        writer.add_block_count(2)
        writer.add_feed_forward_length(96)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        writer.add_layer_norm_rms_eps(1e-6)
        writer.add_rope_freq_base(10000.0)
        if tokenizer:
            _add_tokenizer(writer, _byte_level_tokenizer(pre), pre)
        edit(writer)
        for name, values in weights.items():
            heads = 4 if "q_proj" in name else 2 if "k_proj" in name else 0
            stored = _permuted(values, heads) if heads and architecture == "llama" else values
            if _gguf_name(name) in drop:
                continue
            if values.ndim == 1:
                writer.add_tensor(_gguf_name(name), stored)
            else:
                writer.add_tensor(_gguf_name(name), quantize(stored, kind), raw_dtype=kind)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return make
