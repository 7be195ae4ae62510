"""A GGUF file as a Hugging Face-style directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from engine.checkpoint.gguf_config import config_from_gguf
from engine.checkpoint.gguf_file import open_gguf
from engine.checkpoint.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_from_gguf
from engine.checkpoint.gguf_weights import dequantised_bytes, write_weights
from engine.checkpoint.tensor_index import SINGLE_NAME

CONVERTER_VERSION = 1
"""Part of the cache key: raise it whenever the same GGUF file would be written differently."""


def converted_bytes(gguf: Path) -> int:
    """Disk space that the conversion needs, about. Raises `ModelError` when the file is not one we can convert."""
    with open_gguf(gguf) as file:
        config_from_gguf(file)
        return dequantised_bytes(file) + 64 * 1024 * 1024


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write config, tokenizer and dequantised weights into the empty `directory`, and wait until they are on disk.

    Raises `ModelError` naming the file and the reason.
    """
    with open_gguf(gguf) as file:
        config = config_from_gguf(file)
        tokenizer_config = tokenizer_config_from_gguf(file)
        _write(directory / "tokenizer.json", tokenizer_from_gguf(file).to_str().encode())
        _write_json(directory / "tokenizer_config.json", tokenizer_config)
        _write_json(directory / "config.json", config)
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(directory / "generation_config.json", {name: config[name] for name in ids})
        write_weights(file, directory / SINGLE_NAME)


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
