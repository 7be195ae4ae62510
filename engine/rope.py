"""Rotary embedding tables for every supported scaling, shared by all executors.

Row `p` of the table holds the rotation of position `p`, whatever the batch or the chunk: that is what makes outputs
independent of chunking. Formulas: RoPE (Su et al. 2021), position interpolation ("linear", Chen et al. 2023),
NTK-aware dynamic scaling (bloc97, emozilla 2023), YaRN (Peng et al. 2023), and Llama 3.1's frequency ramp; constants
and defaults are those of transformers' `rope_parameters`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from contracts.errors import ModelError
from contracts.model import ModelSpec, RopeScaling


@dataclass(frozen=True, slots=True)
class RopeTable:
    """cos and sin, float32 [max_context, head_dim / 2], already multiplied by YaRN's attention factor.

    Pair `i` of a head is its elements `i` and `i + head_dim / 2`.
    """

    cos: torch.Tensor
    sin: torch.Tensor


def build_rope_table(spec: ModelSpec, max_context: int, device: torch.device) -> RopeTable:
    """The table of `spec` for positions `0 .. max_context - 1`. Raises `ModelError` for an unusable scaling."""
    scaling = spec.rope_scaling
    if spec.head_dim % 2:
        raise ModelError(f"head_dim {spec.head_dim} is odd: rotary embeddings need pairs")
    if scaling.factor < 1.0:
        raise ModelError(f"rope scaling factor {scaling.factor} is below 1")
    positions = torch.arange(max_context, dtype=torch.float32)
    if scaling.rope_type == "dynamic":
        angles = _dynamic_angles(spec, positions)
    else:
        angles = torch.outer(positions, _inverse_frequencies(spec))
    magnitude = _yarn_attention_factor(scaling) if scaling.rope_type == "yarn" else 1.0
    return RopeTable(cos=(angles.cos() * magnitude).to(device), sin=(angles.sin() * magnitude).to(device))


def _exponents(head_dim: int) -> torch.Tensor:
    return torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim


def _inverse_frequencies(spec: ModelSpec) -> torch.Tensor:
    """float32 [head_dim / 2], radians per position, for the scalings that do not depend on the length."""
    scaling = spec.rope_scaling
    plain = 1.0 / spec.rope_theta ** _exponents(spec.head_dim)
    match scaling.rope_type:
        case "linear":
            return plain / scaling.factor
        case "llama3":
            return _llama3(plain, scaling, _original_context(spec))
        case "yarn":
            return _yarn(plain, spec)
    return plain


def _original_context(spec: ModelSpec) -> int:
    return spec.rope_scaling.original_max_position_embeddings or spec.max_context


def _dynamic_angles(spec: ModelSpec, positions: torch.Tensor) -> torch.Tensor:
    """NTK scaling whose base grows with the sequence: position `p` is rotated as the last of `p + 1` tokens.

    Within the original context this is plain RoPE. Beyond it, it is what transformers does when it decodes with a KV
    cache, one token at a time. (Given one long prompt at once, transformers rotates every token for the full length;
    no cache that is filled in chunks or shared between prompts can do that.)
    """
    original, factor, dim = _original_context(spec), spec.rope_scaling.factor, spec.head_dim
    if dim < 4:
        raise ModelError(f"dynamic rope scaling needs head_dim of at least 4, not {dim}")
    length = (positions.double() + 1).clamp(min=original)
    base = spec.rope_theta * (factor * length / original - (factor - 1)) ** (dim / (dim - 2))
    return positions[:, None] * (1.0 / base.float()[:, None] ** _exponents(dim))


def _llama3(plain: torch.Tensor, scaling: RopeScaling, original: int) -> torch.Tensor:
    """Long wavelengths are stretched by `factor`, short ones kept, those between are blended."""
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    if high <= low:
        raise ModelError(f"llama3 rope scaling: high_freq_factor {high} must exceed low_freq_factor {low}")
    wavelength = 2 * math.pi / plain
    blend = ((original / wavelength - low) / (high - low)).clamp(0, 1)
    return (1 - blend) * plain / scaling.factor + blend * plain


def _yarn(plain: torch.Tensor, spec: ModelSpec) -> torch.Tensor:
    """Dimensions that turn often within the original context are kept, those that turn little are interpolated."""
    scaling, dim, original = spec.rope_scaling, spec.head_dim, _original_context(spec)

    def dimension_of(rotations: float) -> float:
        return dim * math.log(original / (rotations * 2 * math.pi)) / (2 * math.log(spec.rope_theta))

    low, high = dimension_of(scaling.beta_fast), dimension_of(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dim - 1)
    width = high - low if high != low else 0.001
    interpolated = ((torch.arange(dim // 2, dtype=torch.float32) - low) / width).clamp(0, 1)
    return plain / scaling.factor * interpolated + plain * (1 - interpolated)


def _yarn_attention_factor(scaling: RopeScaling) -> float:
    """What cos and sin are multiplied by, so that attention logits keep their temperature at longer lengths."""
    if scaling.attention_factor is not None:
        return scaling.attention_factor

    def magnitude(weight: float) -> float:
        return 0.1 * weight * math.log(scaling.factor) + 1.0 if scaling.factor > 1 else 1.0

    if scaling.mscale and scaling.mscale_all_dim:
        return magnitude(scaling.mscale) / magnitude(scaling.mscale_all_dim)
    return magnitude(1.0)
