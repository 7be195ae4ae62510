"""Exact rewrites of a decoder that make it fit for int8 activations; no cost when it runs, no calibration data.

Rotation. A few channels of the residual stream are hundreds of times larger than the rest, and one int8 scale per row
leaves the rest a handful of steps. Nothing in the decoder asks for that basis: in `x Q`, with Q orthogonal, the large
channels are spread over all (QuaRot: Ashkboos et al. 2024, the part of it that can be done beforehand). RMSNorm
commutes with Q once its gammas are folded into the linear layers behind it.

Balance. The input of down, silu(gate) * up, has large channels too. It comes out of a nonlinearity, so its channels
cannot be mixed, only scaled: a row of up is divided, a column of down multiplied (SmoothQuant: Xiao et al. 2023).

Queries, keys and values do not change: replicas that rotate and replicas that do not can hand KV to each other. That is
why the value heads are not rotated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import overload

import torch

from contracts.model import ModelSpec
from engine.weights import DecoderWeights, LayerWeights

_ROWS_AT_ONCE = 8192  # of a vocabulary table: bounds the temporaries


@dataclass(frozen=True, slots=True)
class Rotation:
    """The orthogonal matrix `diag(signs) (left kron right)` of order n = a * b, applied without being formed.

    signs is [n] of +1 and -1, left [a, a], right [b, b], all float32. A row of n costs 2 n (a + b) operations.
    """

    signs: torch.Tensor
    left: torch.Tensor
    right: torch.Tensor

    def rows(self, x: torch.Tensor) -> torch.Tensor:
        """`x Q` for x [rows, n] or [n]: float32, contiguous."""
        grid = (x.float() * self.signs).view(-1, self.left.shape[0], self.right.shape[0])
        return (self.left.t() @ (grid @ self.right)).reshape(x.shape)

    def columns(self, x: torch.Tensor) -> torch.Tensor:
        """`Q^T x` for x [n, columns]: float32, contiguous."""
        return self.rows(x.t().contiguous()).t().contiguous()


def rotation_of(size: int, seed: int, device: torch.device) -> Rotation:
    """A rotation whose entries are all about as large, so that no channel stays large: +-1 / sqrt(size) for a power
    of 2, at most sqrt(2 / odd part) times that for other sizes. The signs depend on `seed`.
    """
    odd = size // (size & -size)
    left = 1
    while size % (2 * left) == 0 and 2 * left * 2 * left <= size:
        left *= 2
    signs = torch.randint(0, 2, (size,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    right = torch.kron(_hadamard(size // odd // left), _hartley(odd))
    parts = (signs, _hadamard(left), right)
    return Rotation(*(part.to(device, torch.float32) for part in parts))


def rotate_for_int8(weights: DecoderWeights, spec: ModelSpec, seed: int = 0) -> DecoderWeights:
    """The same decoder with gammas of one and a rotated residual stream: equal logits but for rounding.

    Linear weights come as float32 whatever the model's dtype, since they are quantised next; embedding, biases and
    norms keep it. Layers are rewritten when they are asked for. A tied lm_head becomes a table of its own, because it
    takes in the gammas of the final norm and the embedding does not: one more float32 table [vocab, hidden] until the
    lm_head has been packed. `weights` is left as it is, so let go of it.
    """
    rotation = rotation_of(spec.hidden_size, seed, weights.embedding.device)
    return DecoderWeights(
        embedding=_table(weights.embedding, rotation, None, weights.embedding.dtype),
        layers=_RotatedLayers(weights.layers, rotation),
        final_norm=torch.ones_like(weights.final_norm),
        lm_head=_table(weights.lm_head, rotation, weights.final_norm, torch.float32),
    )


class _RotatedLayers(Sequence[LayerWeights]):
    """Layers rewritten at each access; nothing is kept."""

    def __init__(self, layers: Sequence[LayerWeights], rotation: Rotation) -> None:
        self._layers = layers
        self._rotation = rotation

    def __len__(self) -> int:
        return len(self._layers)

    @overload
    def __getitem__(self, index: int) -> LayerWeights: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[LayerWeights]: ...
    def __getitem__(self, index: int | slice) -> LayerWeights | Sequence[LayerWeights]:
        if isinstance(index, slice):
            return [_layer(layer, self._rotation) for layer in self._layers[index]]
        return _layer(self._layers[index], self._rotation)

    def __iter__(self) -> Iterator[LayerWeights]:
        return (_layer(layer, self._rotation) for layer in self._layers)


def _layer(layer: LayerWeights, rotation: Rotation) -> LayerWeights:
    """One layer that reads and writes the rotated stream, balanced. Biases that add to the stream are rotated too."""
    gate_up = rotation.rows(layer.gate_up.float() * layer.post_norm.float())
    scales = _balance(gate_up, layer.down.float())
    divisors = torch.cat((torch.ones_like(scales), scales))
    return replace(
        layer,
        input_norm=torch.ones_like(layer.input_norm),
        qkv=rotation.rows(layer.qkv.float() * layer.input_norm.float()),
        o=rotation.columns(layer.o),
        o_bias=_bias(layer.o_bias, rotation),
        post_norm=torch.ones_like(layer.post_norm),
        gate_up=gate_up.div_(divisors[:, None]),
        gate_up_bias=None
        if layer.gate_up_bias is None
        else (layer.gate_up_bias / divisors).to(layer.gate_up_bias.dtype),
        down=rotation.columns(layer.down * scales),
        down_bias=_bias(layer.down_bias, rotation),
    )


def _balance(gate_up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    """What to divide each channel of down's input by, float32 [ffn].

    Channel i is about as large as |gate_i| |up_i| (norms of rows). Half of what it differs from others by, in
    logarithms, is left in the activations and half goes into the weights, |down_i| (a column); both are int8.
    """
    gate, up = gate_up.norm(dim=1).chunk(2)
    scales = (gate * up / down.norm(dim=0)).sqrt_()
    return torch.where((scales > 0.0) & scales.isfinite(), scales, 1.0)  # a dead channel has nothing to balance


def _bias(bias: torch.Tensor | None, rotation: Rotation) -> torch.Tensor | None:
    return None if bias is None else rotation.rows(bias).to(bias.dtype)


def _table(table: torch.Tensor, rotation: Rotation, gammas: torch.Tensor | None, dtype: torch.dtype) -> torch.Tensor:
    """`table diag(gammas) Q`, a part of the vocabulary at a time."""
    rotated = torch.empty_like(table, dtype=dtype)
    for first in range(0, table.shape[0], _ROWS_AT_ONCE):
        part = table[first : first + _ROWS_AT_ONCE].float()
        rotated[first : first + _ROWS_AT_ONCE] = rotation.rows(part if gammas is None else part * gammas.float())
    return rotated


def _hadamard(order: int) -> torch.Tensor:
    """Sylvester's matrix over sqrt(order), a power of 2: orthogonal."""
    found = torch.ones(1, 1, dtype=torch.float64)
    step = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64)
    while found.shape[0] < order:
        found = torch.kron(found, step)
    return found / math.sqrt(order)


def _hartley(order: int) -> torch.Tensor:
    """cos + sin of 2 pi j k / order, over sqrt(order): orthogonal at any order, no entry over sqrt(2 / order)."""
    index = torch.arange(order)
    angle = (index[:, None] * index % order).double() * (2.0 * math.pi / order)
    return (angle.cos() + angle.sin()) / math.sqrt(order)
