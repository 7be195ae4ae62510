"""Reading a GGUF file's metadata and tensor directory, strictly: every length is checked against the file's size.

Format (versions 2 and 3, little-endian): magic, version, tensor count, key count; the key-value pairs; name,
dimensions, type and offset of each tensor; padding to `general.alignment`; the tensors' data. Strings are a 64-bit
length and UTF-8 bytes. Dimensions are listed innermost first.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from contracts.errors import ModelError

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 4


@dataclass(frozen=True, slots=True)
class GGUFTensor:
    """One tensor. `shape` is outermost first; `begin` and `end` are byte offsets in the file."""

    name: str
    kind: GGMLQuantizationType
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class GGUFFile:
    """An open GGUF file. `data` is the mapped file and valid inside `open_gguf` only."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensor]
    data: mmap.mmap

    def required(self, key: str, kind: type) -> Any:
        """The value of a metadata key. Raises `ModelError` when it is missing or of another kind."""
        value = self.optional(key, kind)
        if value is None:
            raise ModelError(f"{self.path}: metadata key {key!r} is missing")
        return value

    def optional(self, key: str, kind: type) -> Any:
        """The value of a metadata key or None. Raises `ModelError` when it is of another kind."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, kind):
            raise ModelError(f"{self.path}: metadata key {key!r} is {type(value).__name__}, expected {kind.__name__}")
        return value


@contextmanager
def open_gguf(path: Path) -> Iterator[GGUFFile]:
    """Map the file and parse its header. Raises `ModelError` naming the file and what is wrong with it."""
    try:
        num_bytes = path.stat().st_size
        file = path.open("rb")
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    with file:
        if num_bytes == 0:  # which cannot be mapped
            raise ModelError(f"{path}: the file is empty")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield _parse(path, data)


def _parse(path: Path, data: mmap.mmap) -> GGUFFile:
    cursor = _Cursor(path, data)
    if data[:4] != b"GGUF":
        raise ModelError(f"{path}: not a GGUF file (it begins with {data[:4]!r})")
    cursor.position = 4
    version = cursor.scalar("I")
    if version not in {2, 3}:
        raise ModelError(f"{path}: GGUF version {version} is not supported (supported: 2 and 3, little-endian)")
    num_tensors, num_keys = cursor.scalar("Q"), cursor.scalar("Q")
    metadata: dict[str, Any] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(cursor.scalar("I"))
    directory = [_tensor_info(cursor) for _ in range(num_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if not isinstance(alignment, int) or alignment <= 0:
        raise ModelError(f"{path}: general.alignment {alignment!r} is not a positive number")
    start = -(-cursor.position // alignment) * alignment
    tensors = {name: _located(path, len(data), name, rest, start) for name, *rest in directory}
    if len(tensors) != num_tensors:
        raise ModelError(f"{path}: two tensors have the same name")
    return GGUFFile(path, metadata, tensors, data)


def _tensor_info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.string()
    num_dimensions = cursor.scalar("I")
    if not 1 <= num_dimensions <= _MAX_DIMENSIONS:
        raise ModelError(f"{cursor.path}: tensor {name!r} has {num_dimensions} dimensions")
    dimensions = cursor.array("Q", num_dimensions)
    return name, tuple(reversed(dimensions)), cursor.scalar("I"), cursor.scalar("Q")


def _located(path: Path, file_bytes: int, name: str, info: list[Any], start: int) -> GGUFTensor:
    shape, kind_number, offset = info
    try:
        kind = GGMLQuantizationType(kind_number)
    except ValueError:
        raise ModelError(f"{path}: tensor {name!r} has the unknown type {kind_number}") from None
    block_elements, block_bytes = GGML_QUANT_SIZES[kind]
    if shape[-1] % block_elements:
        raise ModelError(f"{path}: tensor {name!r} has rows of {shape[-1]}, not a multiple of {block_elements}")
    begin = start + offset
    end = begin + prod(shape) // block_elements * block_bytes
    if end > file_bytes:
        raise ModelError(
            f"{path}: the file is truncated: tensor {name!r} ends at {end}, the file has {file_bytes} bytes"
        )
    return GGUFTensor(name, kind, shape, begin, end)


class _Cursor:
    """Reads values one after another."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self.path = path
        self.data = data
        self.position = 0

    def take(self, num_bytes: int) -> int:
        """Move past `num_bytes`; the position before."""
        begin = self.position
        if num_bytes > len(self.data) - begin:
            raise ModelError(
                f"{self.path}: truncated or corrupt: {num_bytes} bytes wanted at {begin} of {len(self.data)}"
            )
        self.position = begin + num_bytes
        return begin

    def scalar(self, code: str) -> Any:
        return self.array(code, 1)[0]

    def array(self, code: str, length: int) -> tuple[Any, ...]:
        layout = f"<{length}{code}"
        if length > len(self.data):  # before struct builds a layout for a corrupt length
            self.take(length)
        begin = self.take(struct.calcsize(layout))
        return struct.unpack_from(layout, self.data, begin)

    def string(self) -> str:
        num_bytes = self.scalar("Q")
        begin = self.take(num_bytes)
        try:
            return self.data[begin : begin + num_bytes].decode()
        except UnicodeDecodeError as error:
            raise ModelError(f"{self.path}: the string at {begin} is not UTF-8: {error}") from error

    def value(self, kind: int) -> Any:
        if kind in _SCALARS:
            return self.scalar(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY:
            element_kind, length = self.scalar("I"), self.scalar("Q")
            if element_kind in _SCALARS:
                return list(self.array(_SCALARS[element_kind], length))
            if element_kind == _STRING:
                return [self.string() for _ in range(length)]
            kind = element_kind
        raise ModelError(f"{self.path}: metadata value of unsupported type {kind} at {self.position}")
