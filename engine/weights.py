"""Decoder weights in the shape that the executors want: QKV in one matrix, gate and up in one matrix.

Layers are read when they are asked for, from memory-mapped safetensors files, so that neither the whole model nor two
copies of it need to be in memory while an executor packs its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch
from safetensors import SafetensorError, safe_open

from contracts.errors import ModelError
from contracts.model import ModelSpec


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """One decoder layer; H query heads, G KV heads, D head_dim. Matrices are [out, in], contiguous, model dtype.

    qkv is [(H + 2G) * D, hidden]: query rows, then key rows, then value rows. gate_up is [2 * ffn, hidden]: gate rows,
    then up rows. o is [hidden, H * D], down is [hidden, ffn]. Norms are [hidden], q_norm and k_norm [D].
    """

    input_norm: torch.Tensor
    qkv: torch.Tensor
    qkv_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    o: torch.Tensor
    o_bias: torch.Tensor | None
    post_norm: torch.Tensor
    gate_up: torch.Tensor
    gate_up_bias: torch.Tensor | None
    down: torch.Tensor
    down_bias: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class DecoderWeights:
    """A whole decoder. `embedding` and `lm_head` are [vocab, hidden]; when tied, they are the same tensor.

    `layers` may read from disk at each access: go through it once and keep what you need of each layer.
    """

    embedding: torch.Tensor
    layers: Sequence[LayerWeights]
    final_norm: torch.Tensor
    lm_head: torch.Tensor


class TensorFiles:
    """The tensors of one model over its safetensors files, by name. Raises `ModelError` naming file and reason."""

    def __init__(self, weight_files: Sequence[Path]) -> None:
        self._paths: dict[str, Path] = {}
        for path in weight_files:
            with _opened(path) as reader:
                self._paths.update(dict.fromkeys(reader.keys(), path))
        self._searched = ", ".join(str(path) for path in weight_files)

    def __contains__(self, name: str) -> bool:
        return name in self._paths

    def read(self, name: str, shape: tuple[int, ...]) -> torch.Tensor:
        """The tensor, as a view of a mapping of its own. Its shape must be `shape`.

        The file is opened anew, so that what was read does not stay resident once the view is gone.
        """
        path = self._paths.get(name)
        if path is None:
            raise ModelError(f"tensor {name} is missing from {self._searched}")
        with _opened(path) as reader:
            tensor: torch.Tensor = reader.get_tensor(name)
        if tuple(tensor.shape) != shape:
            raise ModelError(f"{path}: tensor {name} has shape {list(tensor.shape)}, the config asks for {list(shape)}")
        if not tensor.is_floating_point():
            raise ModelError(f"{path}: tensor {name} is {tensor.dtype}; only floating-point weights are supported")
        return tensor


@contextmanager
def _opened(path: Path) -> Iterator[Any]:  # safetensors ships no annotations
    try:
        with safe_open(path, framework="pt") as reader:
            yield reader
    except (OSError, SafetensorError) as error:
        raise ModelError(f"{path}: not a readable safetensors file: {error}") from error


class _LayersOnDisk(Sequence[LayerWeights]):
    """Layers fused at each access; nothing is kept."""

    def __init__(self, spec: ModelSpec, files: TensorFiles, device: torch.device, dtype: torch.dtype) -> None:
        self._spec = spec
        self._files = files
        self._device = device
        self._dtype = dtype

    def __len__(self) -> int:
        return self._spec.num_layers

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        if isinstance(index, slice):
            return [self._layer(i) for i in range(*index.indices(len(self)))]
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self._layer(index)

    def __iter__(self) -> Iterator[LayerWeights]:
        return (self._layer(i) for i in range(len(self)))

    def _read(self, name: str, *shape: int) -> torch.Tensor:
        return self._files.read(name, shape).to(self._device, self._dtype, copy=True)

    def _fused(self, names: Sequence[str], rows: Sequence[int], *inner: int) -> torch.Tensor:
        parts = [self._files.read(name, (n, *inner)) for name, n in zip(names, rows, strict=True)]
        return torch.cat([part.to(self._device, self._dtype) for part in parts])

    def _layer(self, index: int) -> LayerWeights:
        spec, at = self._spec, f"model.layers.{index}."
        attention, mlp = at + "self_attn.", at + "mlp."
        queries, keys = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        qkv_names, qkv_rows = [f"{attention}{part}_proj" for part in "qkv"], (queries, keys, keys)
        mlp_names, mlp_rows = [f"{mlp}{part}_proj" for part in ("gate", "up")], (spec.intermediate_size,) * 2
        hidden, ffn = spec.hidden_size, spec.intermediate_size

        def biases(names: Sequence[str], rows: Sequence[int], present: bool) -> torch.Tensor | None:
            return self._fused([f"{name}.bias" for name in names], rows) if present else None

        return LayerWeights(
            input_norm=self._read(at + "input_layernorm.weight", hidden),
            qkv=self._fused([f"{name}.weight" for name in qkv_names], qkv_rows, hidden),
            qkv_bias=biases(qkv_names, qkv_rows, spec.attention_bias),
            q_norm=self._read(attention + "q_norm.weight", spec.head_dim) if spec.qk_norm else None,
            k_norm=self._read(attention + "k_norm.weight", spec.head_dim) if spec.qk_norm else None,
            o=self._read(attention + "o_proj.weight", hidden, queries),
            o_bias=biases([attention + "o_proj"], [hidden], spec.attention_output_bias),
            post_norm=self._read(at + "post_attention_layernorm.weight", hidden),
            gate_up=self._fused([f"{name}.weight" for name in mlp_names], mlp_rows, hidden),
            gate_up_bias=biases(mlp_names, mlp_rows, spec.mlp_bias),
            down=self._read(mlp + "down_proj.weight", hidden, ffn),
            down_bias=biases([mlp + "down_proj"], [hidden], spec.mlp_bias),
        )


def load_weights(
    spec: ModelSpec, weight_files: Sequence[Path], device: torch.device, dtype: torch.dtype
) -> DecoderWeights:
    """Open `weight_files` (Hugging Face tensor names) as the decoder that `spec` describes.

    Raises `ModelError` when a file cannot be read, a tensor is missing, or a shape differs from the config; layer
    tensors are checked when their layer is read.
    """
    files = TensorFiles(weight_files)
    table = (spec.vocab_size, spec.hidden_size)
    # Copied, because a view would keep the whole file mapped (and resident) for as long as the model lives.
    embedding = files.read("model.embed_tokens.weight", table).to(device, dtype, copy=True)
    lm_head = embedding if spec.tie_word_embeddings else files.read("lm_head.weight", table).to(device, dtype)
    return DecoderWeights(
        embedding=embedding,
        layers=_LayersOnDisk(spec, files, device, dtype),
        final_norm=files.read("model.norm.weight", (spec.hidden_size,)).to(device, dtype, copy=True),
        lm_head=lm_head,
    )
