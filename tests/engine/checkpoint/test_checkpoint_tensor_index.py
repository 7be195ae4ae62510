"""Safetensors files that are truncated, corrupt or incomplete are refused from their headers alone."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from contracts.errors import ModelError
from engine.checkpoint.resolve import resolve_model
from engine.checkpoint.tensor_index import index_directory, index_file

INDEX = "model.safetensors.index.json"


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    save_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3), "b": np.ones(4, np.float16)}, path)
    return path


def test_offsets_point_at_the_values(weights: Path) -> None:
    entry = index_file(weights)["a"]
    assert (entry.dtype, entry.shape, entry.end - entry.begin) == ("F32", (2, 3), 24)
    assert np.frombuffer(weights.read_bytes()[entry.begin : entry.end], np.float32).tolist() == [0, 1, 2, 3, 4, 5]


def test_a_truncated_file_is_refused_with_both_sizes(weights: Path) -> None:
    whole = weights.read_bytes()
    for kept in (len(whole) - 1, len(whole) - 20):
        weights.write_bytes(whole[:kept])
        with pytest.raises(ModelError, match=f"{weights}: .*truncated: expected {len(whole)} bytes, found {kept}"):
            index_file(weights)
    for kept in (0, 5, 8, 40):
        weights.write_bytes(whole[:kept])
        with pytest.raises(ModelError, match=f"not a safetensors file, or truncated: it has {kept} bytes"):
            index_file(weights)
    weights.write_bytes(whole + b"more")
    with pytest.raises(ModelError, match="longer than its header says"):
        index_file(weights)


def with_header(path: Path, header: Any, data_bytes: int = 32) -> None:
    encoded = json.dumps(header).encode() if not isinstance(header, bytes) else header
    path.write_bytes(len(encoded).to_bytes(8, "little") + encoded + bytes(data_bytes))


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"{not json", "header is corrupt"),
        ({"a": {"dtype": "F32", "shape": [8]}}, "header of tensor 'a'"),
        ({"a": {"dtype": "F32", "shape": [9], "data_offsets": [0, 32]}}, "needs 36 bytes, but its offsets are 0 to 32"),
        ({"a": {"dtype": "F32", "shape": [-8], "data_offsets": [0, 32]}}, "its offsets are 0 to 32"),
        ({"a": {"dtype": "F8_E4M3", "shape": [32], "data_offsets": [0, 32]}}, "dtype F8_E4M3, which is not supported"),
        ({"a": {"dtype": "I64", "shape": [4], "data_offsets": [0, 32]}}, "dtype I64, which is not supported"),
    ],
)
def test_a_wrong_header_is_refused(weights: Path, header: Any, message: str) -> None:
    with_header(weights, header)
    with pytest.raises(ModelError, match=message):
        index_file(weights)


def test_a_huge_header_length_is_refused_before_it_is_read(weights: Path) -> None:
    weights.write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(ModelError, match="states a header of 4611686018427387904"):
        index_file(weights)


def test_shards_and_index_must_agree(hf_model: Callable[..., Path]) -> None:
    directory = hf_model("llama", shard_size="100KB")
    files, tensors = index_directory(directory)
    assert {entry.file for entry in tensors.values()} == set(files)
    index = json.loads((directory / INDEX).read_text())

    def weight_map(**changes: str) -> None:
        (directory / INDEX).write_text(json.dumps({"weight_map": index["weight_map"] | changes}))

    weight_map(**{"model.norm.weight": files[0].name, "lm_head.weight": files[-1].name, "x": files[0].name})
    with pytest.raises(ModelError, match=f"is not in the file, though {INDEX} says so"):
        index_directory(directory)
    weight_map(x="../elsewhere.safetensors")
    with pytest.raises(ModelError, match="is not in the model directory"):
        index_directory(directory)
    (directory / INDEX).write_text("{}")
    with pytest.raises(ModelError, match="missing required field `weight_map`"):
        index_directory(directory)
    weight_map()
    files[1].rename(directory / "hidden")
    with pytest.raises(ModelError, match=f"{files[1].name}: the file is missing"):
        resolve_model(str(directory))
