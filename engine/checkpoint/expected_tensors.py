"""Which tensors a spec needs, and the check that they are all there with the right shape and nothing else is."""

from __future__ import annotations

from pathlib import Path

from contracts.errors import ModelError
from contracts.model import ModelSpec
from engine.checkpoint.tensor_index import TensorEntry

_IGNORED_SUFFIX = "rotary_emb.inv_freq"  # written by old versions of transformers; computed, not learned


def expected_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor that the engine reads. Linear weights are [out_features, in_features]."""
    shapes = {
        "model.embed_tokens.weight": (spec.vocab_size, spec.hidden_size),
        "model.norm.weight": (spec.hidden_size,),
    }
    if not spec.tie_word_embeddings:
        shapes["lm_head.weight"] = (spec.vocab_size, spec.hidden_size)
    layer = _layer_tensors(spec)
    for index in range(spec.num_layers):
        shapes.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
    return shapes


def _layer_tensors(spec: ModelSpec) -> dict[str, tuple[int, ...]]:
    hidden, inner = spec.hidden_size, spec.intermediate_size
    query, key = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
    linears = {
        "self_attn.q_proj": (query, hidden, spec.attention_bias),
        "self_attn.k_proj": (key, hidden, spec.attention_bias),
        "self_attn.v_proj": (key, hidden, spec.attention_bias),
        "self_attn.o_proj": (hidden, query, spec.attention_output_bias),
        "mlp.gate_proj": (inner, hidden, spec.mlp_bias),
        "mlp.up_proj": (inner, hidden, spec.mlp_bias),
        "mlp.down_proj": (hidden, inner, spec.mlp_bias),
    }
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
    }
    for name, (rows, columns, bias) in linears.items():
        shapes[f"{name}.weight"] = (rows, columns)
        if bias:
            shapes[f"{name}.bias"] = (rows,)
    if spec.qk_norm:
        shapes["self_attn.q_norm.weight"] = (spec.head_dim,)
        shapes["self_attn.k_norm.weight"] = (spec.head_dim,)
    return shapes


def check_complete(spec: ModelSpec, tensors: dict[str, TensorEntry], directory: Path) -> None:
    """Raises `ModelError` for a missing tensor, a wrong shape, or a tensor that the engine would ignore.

    An unknown tensor is refused because leaving it out (a bias, an expert) gives wrong answers without a sign.
    """
    expected = expected_tensors(spec)
    for name, shape in expected.items():
        entry = tensors.get(name)
        if entry is None:
            raise ModelError(f"{directory}: tensor {name!r} is missing from the weight files")
        if entry.shape != shape:
            raise ModelError(f"{entry.file}: tensor {name!r} has shape {list(entry.shape)}, expected {list(shape)}")
    for name, entry in tensors.items():
        tied = spec.tie_word_embeddings and name == "lm_head.weight"
        if name not in expected and not tied and not name.endswith(_IGNORED_SUFFIX):
            raise ModelError(f"{entry.file}: tensor {name!r} is not part of a {spec.family} model as configured")
