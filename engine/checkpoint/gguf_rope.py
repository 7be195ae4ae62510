"""Rotary embedding settings of a GGUF file, in Hugging Face's terms."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from contracts.errors import ModelError
from engine.checkpoint.gguf_file import GGUFFile

FREQUENCIES = "rope_freqs.weight"
_TOLERANCE = 1e-3


def rope_parameters(file: GGUFFile, architecture: str, theta: float, head_dim: int) -> dict[str, Any]:
    """The value of `rope_parameters`. Raises `ModelError` for scalings that Hugging Face's terms cannot express.

    Llama 3's scaling is stored not as settings but as one divisor per frequency (`rope_freqs.weight`).
    """
    if FREQUENCIES in file.tensors:
        tensor = file.tensors[FREQUENCIES]
        divisors = np.frombuffer(file.data[tensor.begin : tensor.end], np.float32)
        return {"rope_theta": theta, **_llama3(file, divisors.astype(np.float64), theta, head_dim)}
    prefix = f"{architecture}.rope.scaling."
    kind = file.optional(f"{prefix}type", str) or "none"
    legacy = file.optional(f"{architecture}.rope.scale_linear", float)
    if kind == "none" and legacy not in {None, 0.0, 1.0}:
        return {"rope_theta": theta, "rope_type": "linear", "factor": shortest(legacy)}
    if kind == "none":
        return {"rope_theta": theta, "rope_type": "default"}
    if kind not in {"linear", "yarn"}:
        raise ModelError(f"{file.path}: {prefix}type {kind!r} is not supported (supported: none, linear, yarn)")
    factor = shortest(file.required(f"{prefix}factor", float))
    settings: dict[str, Any] = {"rope_theta": theta, "rope_type": kind, "factor": factor}
    original = file.optional(f"{prefix}original_context_length", int)
    if original:
        settings["original_max_position_embeddings"] = original
    if kind == "yarn":
        settings |= _yarn(file, prefix, factor)
    return settings


def _yarn(file: GGUFFile, prefix: str, factor: float) -> dict[str, float]:
    settings: dict[str, float] = {}
    for name in ("beta_fast", "beta_slow"):
        value = file.optional(f"{prefix}yarn_{name}", float)
        if value is not None:
            settings[name] = shortest(value)
    for name, neutral in (("yarn_log_multiplier", 0.0), ("yarn_ext_factor", 1.0), ("yarn_attn_factor", 1.0)):
        value = file.optional(f"{prefix}{name}", float)
        if value not in {None, neutral}:
            raise ModelError(f"{file.path}: {prefix}{name} {value!r} is not supported")
    attention = file.optional(f"{prefix}attn_factor", float)
    if attention not in {None, 1.0}:  # a multiplier on top of YaRN's own magnitude correction
        settings["attention_factor"] = shortest(attention) * (1.0 + 0.1 * float(np.log(factor)))
    return settings


def _llama3(file: GGUFFile, divisors: NDArray[np.float64], theta: float, head_dim: int) -> dict[str, Any]:
    """The settings whose divisors these are.

    A frequency of wavelength w is divided by `1 / ((1 - s) / factor + s)` with
    `s = (original / w - low) / (high - low)`, held to [0, 1] (Llama 3.1). Divisors fix the line `s(1 / w)` but not
    `low`, `high` and `original` apart, so `low` is 1 as in every released model, and the rest follows.
    """
    refusal = f"{file.path}: {FREQUENCIES} is no Llama 3 scaling"
    factor = float(divisors.max(initial=1.0))
    if divisors.shape != (head_dim // 2,) or factor <= 1:
        raise ModelError(f"{refusal}: {divisors.size} divisors up to {factor}")
    rotations = theta ** -(np.arange(0, head_dim, 2) / head_dim) / (2 * np.pi)
    blend = (1 / divisors - 1 / factor) / (1 - 1 / factor)
    between = (blend > _TOLERANCE) & (blend < 1 - _TOLERANCE)
    high, original = 4.0, 8192
    if between.sum() >= 2:
        slope, start = np.polyfit(rotations[between], blend[between], 1).tolist()
        high = round(1 - 1 / start, 3) if start < 0 else high
        original = round(slope * (high - 1))
    expected = np.clip((original * rotations - 1) / (high - 1), 0, 1)
    if not np.allclose(expected, blend, atol=_TOLERANCE):
        raise ModelError(refusal)
    return {
        "rope_type": "llama3",
        "factor": round(factor, 4),
        "low_freq_factor": 1.0,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def shortest(value: float) -> float:
    """The shortest decimal that is the same float32: GGUF stores 1e-05 as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
