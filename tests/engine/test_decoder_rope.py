"""Rotary tables equal transformers' for every scaling; dynamic scaling equals its cached decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from contracts.errors import ModelError
from contracts.model import ModelSpec, RopeScaling
from engine.rope import build_rope_table

CPU = torch.device("cpu")
ORIGINAL = 64

SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "llama3": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "llama3, narrow": {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 2.0, "high_freq_factor": 3.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn, fraction": {"rope_type": "yarn", "factor": 2.5, "beta_fast": 16.0, "beta_slow": 2.0, "truncate": False},
    "yarn, attention factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7},
    "yarn, mscale": {"rope_type": "yarn", "factor": 40.0, "mscale": 0.707, "mscale_all_dim": 0.5},
    "yarn, one ramp step": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 1.0, "beta_slow": 1.0},
}


def spec_with(scaling: RopeScaling, head_dim: int = 32) -> ModelSpec:
    return ModelSpec(
        name="rope",
        family="llama",
        vocab_size=8,
        hidden_size=2 * head_dim,
        intermediate_size=8,
        num_layers=1,
        num_heads=2,
        num_kv_heads=2,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        rope_scaling=scaling,
        max_context=256,
        tie_word_embeddings=True,
    )


@pytest.mark.parametrize("case", SCALINGS)
def test_table_equals_transformers(case: str) -> None:
    settings = SCALINGS[case]
    original: dict[str, Any] = (
        {} if settings["rope_type"] in {"default", "linear"} else {"original_max_position_embeddings": ORIGINAL}
    )
    config = transformers.LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        max_position_embeddings=256,
        rope_parameters={"rope_theta": 10_000.0, **settings, **original},
    )
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(256)[None])
    table = build_rope_table(spec_with(RopeScaling(**settings, **original)), 256, CPU)
    assert table.cos.shape == (256, 16)
    torch.testing.assert_close(table.cos, cos[0, :, :16], atol=2e-5, rtol=0)
    torch.testing.assert_close(table.sin, sin[0, :, :16], atol=2e-5, rtol=0)


@pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")
@pytest.mark.parametrize("chunk", [1, 9])
def test_dynamic_beyond_the_original_context_equals_cached_decoding(
    chunk: int, executor: str, make_tiny: Any, make_driver: Any, tokens: Any
) -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10_000.0, "factor": 2.0}
    model = make_tiny("Llama", max_position_embeddings=ORIGINAL, rope_parameters=rope)
    text = tokens(110, seed=5)
    wanted = []
    with torch.inference_mode():
        cache = transformers.DynamicCache(config=model.reference.config)
        for part in (text[:50], *([token] for token in text[50:])):
            out = model.reference(torch.tensor([part]), past_key_values=cache, use_cache=True)
            wanted.append(out.logits[0])
    driver = make_driver(model, executor=executor, max_context=128)
    driver.start("long", text)
    assert float((driver.run("long", chunk) - torch.cat(wanted)).abs().max()) <= 1e-4


def test_dynamic_table_does_not_depend_on_the_configured_context() -> None:
    scaling = RopeScaling(rope_type="dynamic", factor=2.0, original_max_position_embeddings=ORIGINAL)
    short, long = (build_rope_table(spec_with(scaling), length, CPU) for length in (70, 200))
    torch.testing.assert_close(long.cos[:70], short.cos, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("scaling", "head_dim"),
    [
        (RopeScaling(rope_type="linear", factor=0.5), 32),
        (RopeScaling(rope_type="llama3", factor=2.0, low_freq_factor=4.0, high_freq_factor=4.0), 32),
        (RopeScaling(rope_type="dynamic", factor=2.0), 2),
        (RopeScaling(), 33),
    ],
)
def test_unusable_scalings_are_refused(scaling: RopeScaling, head_dim: int) -> None:
    with pytest.raises(ModelError):
        build_rope_table(spec_with(scaling, head_dim), 128, CPU)
