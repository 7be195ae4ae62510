"""A cheap digest that says whether two checkpoints are the same model."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import BinaryIO

import msgspec

from contracts.model import ModelSpec
from engine.checkpoint.tensor_index import TensorEntry

_SAMPLE_BYTES = 256


def model_digest(spec: ModelSpec, tensors: dict[str, TensorEntry]) -> str:
    """32 hex digits over the spec (without its name), every tensor's name, dtype and shape, and sampled bytes.

    Sampled are the first, middle and last 256 bytes of each tensor: training changes every part of the tensors it
    touches, so two models that differ are told apart, in milliseconds even for large files. How tensors are spread
    over files does not matter. It is no protection against a file altered on purpose.
    """
    anonymous = msgspec.structs.replace(spec, name="", digest="")
    state = hashlib.sha256(msgspec.json.encode(anonymous))
    open_files: dict[Path, BinaryIO] = {}
    try:
        for name, entry in sorted(tensors.items()):
            state.update(f"\n{name} {entry.dtype} {entry.shape} ".encode())
            if entry.file not in open_files:
                open_files[entry.file] = entry.file.open("rb")
            for offset in _sample_offsets(entry):
                open_files[entry.file].seek(offset)
                state.update(open_files[entry.file].read(min(_SAMPLE_BYTES, entry.end - offset)))
    finally:
        for file in open_files.values():
            file.close()
    return state.hexdigest()[:32]


def _sample_offsets(entry: TensorEntry) -> tuple[int, ...]:
    last = max(entry.begin, entry.end - _SAMPLE_BYTES)
    return entry.begin, (entry.begin + last) // 2, last
