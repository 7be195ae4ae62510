"""A GGUF file as a Hugging Face-style directory."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ModelError
from engine.checkpoint.config_file import spec_from_config
from engine.checkpoint.expected_tensors import check_complete
from engine.checkpoint.gguf_config import config_from_gguf
from engine.checkpoint.gguf_file import open_gguf
from engine.checkpoint.gguf_tokenizer import tokenizer_config_from_gguf, tokenizer_from_gguf
from engine.checkpoint.gguf_weights import planned_tensors, write_weights
from engine.checkpoint.tensor_index import SINGLE_NAME

CONVERTER_VERSION = 1
"""Part of the cache key: raise it whenever the same GGUF file would be written differently."""

CONVERTED_FILES = ("config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", SINGLE_NAME)
"""Every conversion has all of them, some of which a directory of another origin may lack."""


def convert_gguf(gguf: Path, directory: Path) -> None:
    """Write config, tokenizer and dequantised weights into the empty `directory`, and wait until they are on disk.

    Everything that can be refused is refused before the weights are written. Raises `ModelError` naming the GGUF file
    and the reason.
    """
    with open_gguf(gguf) as file:
        config = config_from_gguf(file)
        _write_json(directory / "config.json", config)
        ids = ("bos_token_id", "eos_token_id", "pad_token_id")
        _write_json(directory / "generation_config.json", {name: config[name] for name in ids})
        _write_json(directory / "tokenizer_config.json", tokenizer_config_from_gguf(file))
        _write(directory / "tokenizer.json", tokenizer_from_gguf(file).to_str().encode())
        planned = planned_tensors(file)
        try:
            check_complete(spec_from_config(directory, gguf.stem), planned, gguf)
        except ModelError as error:
            raise ModelError(f"{gguf}: {error}") from error
        _check_space(gguf, directory, sum(entry.end - entry.begin for entry in planned.values()))
        write_weights(file, directory / SINGLE_NAME)


def _check_space(gguf: Path, directory: Path, needed: int) -> None:
    free = shutil.disk_usage(directory).free
    if needed > free:
        raise ModelError(f"{gguf}: converting needs {needed} bytes in {directory.parent}, {free} are free")


def _write_json(path: Path, value: dict[str, Any]) -> None:
    _write(path, msgspec.json.format(msgspec.json.encode(value), indent=1))


def _write(path: Path, content: bytes) -> None:
    with path.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
