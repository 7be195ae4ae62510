"""A model on disk, checked and ready to load."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.model import ModelSpec


class SpecialTokens(msgspec.Struct, frozen=True, kw_only=True):
    """The strings that chat templates call `bos_token`, `eos_token`, ..."""

    bos: str | None = None
    eos: str | None = None
    unk: str | None = None
    pad: str | None = None


class ModelFiles(msgspec.Struct, frozen=True, kw_only=True):
    """What `resolve_model` found.

    `name` is what was asked for, `served_name` what clients call the model. `weight_files` are safetensors files that
    together hold every tensor of `spec` (dtypes F32, F16 or BF16, possibly mixed). `add_bos` says whether the
    tokenizer's own post-processor puts BOS before a raw completion; a rendered chat template is always encoded
    without special tokens, since the template writes them itself.
    """

    name: str
    served_name: str
    directory: Path
    spec: ModelSpec
    weight_files: tuple[Path, ...]
    tokenizer_file: Path
    chat_template: str | None
    special_tokens: SpecialTokens
    add_bos: bool
