"""The tensors of a GGUF file as one safetensors file, written tensor by tensor.

Quantised tensors become F32 with exactly the values they stand for; F32, F16 and BF16 stay as they are.
"""

from __future__ import annotations

import os
import re
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import msgspec
import numpy as np
from gguf import GGMLQuantizationType, dequantize
from numpy.typing import NDArray

from contracts.errors import ModelError
from engine.checkpoint.gguf_config import architecture_of, head_counts
from engine.checkpoint.gguf_file import GGUFFile, GGUFTensor
from engine.checkpoint.gguf_rope import FREQUENCIES
from engine.checkpoint.tensor_index import TensorEntry

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(\d+)\.([a-z_]+)\.(weight|bias)")
_PLAIN: dict[GGMLQuantizationType, tuple[str, np.dtype[Any]]] = {
    GGMLQuantizationType.F32: ("F32", np.dtype("<f4")),
    GGMLQuantizationType.F16: ("F16", np.dtype("<f2")),
    GGMLQuantizationType.BF16: ("BF16", np.dtype("<u2")),  # numpy has no bfloat16: the bits are copied
}
_NOT_WEIGHTS = {"F64", "I8", "I16", "I32", "I64"}


def planned_tensors(file: GGUFFile) -> dict[str, TensorEntry]:
    """Hugging Face name -> what will be written, with offsets into the data part, in the order of writing.

    Raises `ModelError` for a tensor whose name or type is not known.
    """
    planned: dict[str, TensorEntry] = {}
    offset = 0
    for tensor in _written(file):
        dtype, layout = _layout(file, tensor)
        end = offset + prod(tensor.shape) * layout.itemsize
        planned[_hugging_face_name(file, tensor.name)] = TensorEntry(file.path, dtype, tensor.shape, offset, end)
        offset = end
    return planned


def write_weights(file: GGUFFile, path: Path) -> None:
    """Write `planned_tensors` to `path`, and wait until they are on disk. One tensor at a time is in memory."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for name, entry in planned_tensors(file).items():
        header[name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": [entry.begin, entry.end]}
    with path.open("wb") as out:
        _write_header(out, header)
        for tensor in _written(file):
            out.write(np.ascontiguousarray(_values(file, tensor)).data)
        out.flush()
        os.fsync(out.fileno())


def _written(file: GGUFFile) -> list[GGUFTensor]:
    return [tensor for tensor in file.tensors.values() if tensor.name != FREQUENCIES]


def _write_header(out: BinaryIO, header: dict[str, Any]) -> None:
    encoded = msgspec.json.encode(header)
    encoded += b" " * (-len(encoded) % 8)  # the data begins at a multiple of 8
    out.write(len(encoded).to_bytes(8, "little") + encoded)


def _hugging_face_name(file: GGUFFile, name: str) -> str:
    if name in _TOP:
        return _TOP[name]
    match = _LAYER_NAME.fullmatch(name)
    if match is None or match[2] not in _LAYER:
        raise ModelError(f"{file.path}: tensor {name!r} is not known for this architecture")
    return f"model.layers.{match[1]}.{_LAYER[match[2]]}.{match[3]}"


def _layout(file: GGUFFile, tensor: GGUFTensor) -> tuple[str, np.dtype[Any]]:
    if tensor.kind.name in _NOT_WEIGHTS:
        raise ModelError(f"{file.path}: tensor {tensor.name!r} has type {tensor.kind.name}, which is not supported")
    return _PLAIN.get(tensor.kind, _PLAIN[GGMLQuantizationType.F32])


def _values(file: GGUFFile, tensor: GGUFTensor) -> NDArray[Any]:
    """The tensor with its Hugging Face shape and row order."""
    raw = file.data[tensor.begin : tensor.end]  # a copy, so that nothing holds the mapping open
    if tensor.kind in _PLAIN:
        values: NDArray[Any] = np.frombuffer(raw, _PLAIN[tensor.kind][1])
    else:
        rows = np.frombuffer(raw, np.uint8).reshape(prod(tensor.shape[:-1]), -1)
        try:
            values = dequantize(rows, tensor.kind)
        except NotImplementedError as error:
            raise ModelError(f"{file.path}: tensor {tensor.name!r}: {tensor.kind.name} cannot be read") from error
    values = values.reshape(tensor.shape)
    architecture = architecture_of(file)
    if architecture in {"llama", "mistral"}:
        heads, kv_heads = head_counts(file, architecture)
        part = tensor.name.split(".")[-2]
        if part in {"attn_q", "attn_k"}:
            return _unpermuted(values, heads if part == "attn_q" else kv_heads)
    return values


def _unpermuted(values: NDArray[Any], heads: int) -> NDArray[Any]:
    """Undo the row order that GGUF uses for interleaved rotary pairs: (pair, half) back to (half, pair) per head."""
    pairs = values.shape[0] // heads // 2
    return values.reshape(heads, pairs, 2, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)
