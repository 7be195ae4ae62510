"""An index of every tensor in a model's safetensors files, read from the headers alone.

Format: 8 bytes little-endian header length, a JSON object name -> {dtype, shape, data_offsets}, then the data.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ModelError
from engine.checkpoint.json_file import read_json

INDEX_NAME = "model.safetensors.index.json"
SINGLE_NAME = "model.safetensors"
_MAX_HEADER_BYTES = 100_000_000  # the safetensors format's own limit
_DTYPE_BYTES = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """Where one tensor lies: `begin` and `end` are byte offsets in `file`; `dtype` is F32, F16 or BF16."""

    file: Path
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: tuple[int, ...]
    data_offsets: tuple[int, int]


class _ShardIndex(msgspec.Struct):
    weight_map: dict[str, str]


def index_directory(directory: Path) -> tuple[tuple[Path, ...], dict[str, TensorEntry]]:
    """The weight files of a model directory and all their tensors.

    Raises `ModelError` when there are none, a shard is missing or truncated, or the shard index and the shards
    disagree. The message names the file and, for a truncated one, the expected and the actual bytes.
    """
    if (directory / INDEX_NAME).exists():
        return _index_shards(directory)
    single = directory / SINGLE_NAME
    if single.exists():
        return (single,), index_file(single)
    other = sorted(file.name for pattern in ("*.safetensors", "*.bin", "*.pt*") for file in directory.glob(pattern))
    found = f" (found only {', '.join(other[:3])})" if other else ""
    raise ModelError(f"{single}: the file is missing, and so is {INDEX_NAME}{found}")


def _index_shards(directory: Path) -> tuple[tuple[Path, ...], dict[str, TensorEntry]]:
    path = directory / INDEX_NAME
    weight_map = read_json(path, _ShardIndex).weight_map
    files = tuple(directory / name for name in sorted(set(weight_map.values())))
    if not files:
        raise ModelError(f"{path}: weight_map is empty")
    tensors: dict[str, TensorEntry] = {}
    for file in files:
        if file.parent != directory:
            raise ModelError(f"{path}: shard {str(file)!r} is not in the model directory")
        for name, entry in index_file(file).items():
            if name in tensors:
                raise ModelError(f"{file}: tensor {name!r} is also in {tensors[name].file.name}")
            tensors[name] = entry
    for name, shard in weight_map.items():
        if name not in tensors or tensors[name].file.name != shard:
            raise ModelError(f"{directory / shard}: tensor {name!r} is not in the file, though {INDEX_NAME} says so")
    return files, tensors


def index_file(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one safetensors file. Raises `ModelError` (missing, truncated, corrupt, unsupported dtype)."""
    header, data_start, file_bytes = _read_header(path)
    tensors: dict[str, TensorEntry] = {}
    data_bytes = 0
    for name, raw in header.items():
        if name == "__metadata__":
            continue
        try:
            entry = msgspec.convert(raw, _Entry)
        except msgspec.ValidationError as error:
            raise ModelError(f"{path}: header of tensor {name!r}: {error}") from error
        tensors[name] = _checked(entry, name, path, data_start)
        data_bytes = max(data_bytes, entry.data_offsets[1])
    if file_bytes != data_start + data_bytes:
        state = "truncated" if file_bytes < data_start + data_bytes else "longer than its header says"
        raise ModelError(f"{path}: the file is {state}: expected {data_start + data_bytes} bytes, found {file_bytes}")
    return tensors


def _read_header(path: Path) -> tuple[dict[str, Any], int, int]:
    try:
        with path.open("rb") as file:
            file_bytes = path.stat().st_size
            length = file.read(8)
            header_bytes = struct.unpack("<Q", length)[0] if len(length) == 8 else 0
            if not 2 <= header_bytes <= min(_MAX_HEADER_BYTES, file_bytes - 8):
                raise ModelError(
                    f"{path}: not a safetensors file, or truncated: it has {file_bytes} bytes and states a header of "
                    f"{header_bytes}"
                )
            raw = file.read(header_bytes)
    except FileNotFoundError:
        raise ModelError(f"{path}: the file is missing") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return msgspec.json.decode(raw, type=dict[str, Any]), 8 + header_bytes, file_bytes
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: the safetensors header is corrupt: {error}") from error


def _checked(entry: _Entry, name: str, path: Path, data_start: int) -> TensorEntry:
    begin, end = entry.data_offsets
    if entry.dtype not in _DTYPE_BYTES:
        supported = ", ".join(_DTYPE_BYTES)
        raise ModelError(f"{path}: tensor {name!r} has dtype {entry.dtype}, which is not supported ({supported})")
    expected = prod(entry.shape) * _DTYPE_BYTES[entry.dtype]
    if begin < 0 or end - begin != expected or any(size <= 0 for size in entry.shape):
        raise ModelError(
            f"{path}: tensor {name!r} of shape {list(entry.shape)} and dtype {entry.dtype} needs {expected} bytes, "
            f"but its offsets are {begin} to {end}"
        )
    return TensorEntry(path, entry.dtype, entry.shape, data_start + begin, data_start + end)
