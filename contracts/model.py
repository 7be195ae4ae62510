"""A decoder-only model as data: everything the engine needs to build it and the router needs to judge a request."""

from __future__ import annotations

from typing import Literal

import msgspec

RopeType = Literal["default", "linear", "dynamic", "llama3", "yarn"]


class RopeScaling(msgspec.Struct, frozen=True, kw_only=True):
    """Rotary embedding scaling, in the terms of Hugging Face's `rope_scaling` / `rope_parameters`."""

    rope_type: RopeType = "default"
    factor: float = 1.0
    original_max_position_embeddings: int | None = None
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    attention_factor: float | None = None
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    mscale: float | None = None
    mscale_all_dim: float | None = None
    truncate: bool = True


class ModelSpec(msgspec.Struct, frozen=True, kw_only=True):
    """One model. `max_context` is in tokens, prompt and output together."""

    name: str
    family: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = RopeScaling()
    max_context: int
    tie_word_embeddings: bool
    attention_bias: bool = False
    attention_output_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    digest: str = ""
