"""Rotary embedding settings of a config.json, in both of Hugging Face's spellings.

Old: `rope_theta` beside `rope_scaling` (`type` or `rope_type`). New (transformers 5): everything in
`rope_parameters`.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from contracts.errors import ModelError
from contracts.model import RopeScaling, RopeType

_DEFAULT_THETA = 10000.0
_IGNORED = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "finetuned"}


def rope_from_config(config: dict[str, Any], max_positions: int, where: str) -> tuple[float, RopeScaling]:
    """Theta and scaling. `max_positions` is the config's `max_position_embeddings`.

    `original_max_position_embeddings` is filled in for every scaled type (it defaults to `max_positions`, as in
    transformers). Raises `ModelError` naming `where`, the field and its value.
    """
    settings = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    partial = settings.get("partial_rotary_factor", config.get("partial_rotary_factor"))
    if partial not in {None, 1}:
        raise ModelError(f"{where}: partial_rotary_factor {partial!r} is not supported, only 1.0 is")
    theta = settings.get("rope_theta", config.get("rope_theta")) or _DEFAULT_THETA
    if not isinstance(theta, int | float) or theta <= 0:
        raise ModelError(f"{where}: rope_theta {theta!r} is not a positive number")
    return float(theta), _scaling(settings, config, max_positions, where)


def _scaling(settings: dict[str, Any], config: dict[str, Any], max_positions: int, where: str) -> RopeScaling:
    rope_type = settings.get("rope_type", settings.get("type")) or "default"
    if rope_type not in get_args(RopeType):
        supported = ", ".join(get_args(RopeType))
        raise ModelError(f"{where}: rope_type {rope_type!r} is not supported (supported: {supported})")
    if rope_type == "default":
        return RopeScaling()
    values = {name: value for name, value in settings.items() if name not in _IGNORED and value is not None}
    unknown = sorted(set(values) - {field.name for field in msgspec.structs.fields(RopeScaling)})
    if unknown:
        raise ModelError(f"{where}: rope setting {unknown[0]!r} with value {values[unknown[0]]!r} is not known")
    original = config.get("original_max_position_embeddings") or values.get("original_max_position_embeddings")
    values["original_max_position_embeddings"] = original or max_positions
    if "factor" not in values:
        if rope_type != "yarn":
            raise ModelError(f"{where}: rope_type {rope_type!r} needs a factor")
        values["factor"] = max_positions / values["original_max_position_embeddings"]
    if rope_type == "llama3" and not {"low_freq_factor", "high_freq_factor"} <= values.keys():
        raise ModelError(f"{where}: rope_type 'llama3' needs low_freq_factor and high_freq_factor")
    try:
        scaling = msgspec.convert({"rope_type": rope_type, **values}, RopeScaling)
    except msgspec.ValidationError as error:
        raise ModelError(f"{where}: rope settings: {error}") from error
    if scaling.factor < 1:
        raise ModelError(f"{where}: rope factor {scaling.factor!r} is below 1")
    return scaling


def scaled_context(scaling: RopeScaling, max_positions: int) -> int:
    """Tokens that the model can position.

    `linear`, `dynamic` and `yarn` stretch the original length by `factor`, so the context is the larger of that and
    `max_positions`. `llama3` configs already state the stretched length.
    """
    original = scaling.original_max_position_embeddings
    if scaling.rope_type in {"linear", "dynamic", "yarn"} and original:
        return max(max_positions, int(original * scaling.factor))
    return max_positions
