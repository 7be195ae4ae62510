"""Decoder weights packed for the CPU kernels: one copy that serves every row count.

Memory: fp32 4 bytes a weight, int8 1 byte a weight and 8 bytes a column. The embedding table stays beside it as it is (
a view of the mapped model file if that is fp32 already), so a tied lm_head costs a packed copy of its own.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable

import torch

from contracts.model import ModelSpec
from engine import native_abi as abi
from engine.native_compile import native_kernels
from engine.rope import RopeTable
from engine.weights import DecoderWeights, LayerWeights

_HUGE_PAGE_BYTES = 2 * 1024 * 1024


class PackedDecoder:
    """The kernels' view of one model: `model` is an `abi.Model` whose memory this object owns.

    `caches` holds one KV tensor per layer, in the layout of `contracts.kv.KVLayout`, float32.
    """

    def __init__(
        self,
        weights: DecoderWeights,
        spec: ModelSpec,
        rope: RopeTable,
        caches: Iterable[torch.Tensor],
        block_size: int,
        *,
        is_int8: bool,
        num_threads: int,
    ) -> None:
        self._kernels = native_kernels()
        self._owned: list[torch.Tensor] = []
        self._is_int8 = is_int8
        self._arena = torch.empty(self._arena_bytes(spec), dtype=torch.uint8)
        self._kernels.ps_advise_huge(self._arena.data_ptr(), self._arena.numel())
        self._used_bytes = -self._arena.data_ptr() % _HUGE_PAGE_BYTES
        self._num_threads = num_threads
        layers = [self._layer(layer, cache) for layer, cache in zip(weights.layers, caches, strict=True)]
        self._layers = (abi.Layer * len(layers))(*layers)
        self.model = abi.Model(
            num_layers=len(layers),
            hidden=spec.hidden_size,
            heads=spec.num_heads,
            kv_heads=spec.num_kv_heads,
            head_dim=spec.head_dim,
            ffn=spec.intermediate_size,
            vocab=spec.vocab_size,
            block_size=block_size,
            norm_eps=spec.rms_norm_eps,
            is_int8=is_int8,
            layers=ctypes.addressof(self._layers),
            final_norm=self._vector(weights.final_norm),
            lm_head=self._linear(weights.lm_head, None),
            cosine=self._vector(rope.cos),
            sine=self._vector(rope.sin),
        )

    def _layer(self, layer: LayerWeights, cache: torch.Tensor) -> abi.Layer:
        return abi.Layer(
            input_norm=self._vector(layer.input_norm),
            post_norm=self._vector(layer.post_norm),
            q_norm=self._vector(layer.q_norm),
            k_norm=self._vector(layer.k_norm),
            qkv=self._linear(layer.qkv, layer.qkv_bias),
            o=self._linear(layer.o, layer.o_bias),
            gate_up=self._linear(layer.gate_up, layer.gate_up_bias, paired=True),
            down=self._linear(layer.down, layer.down_bias),
            cache=self._keep(cache),
        )

    def _arena_bytes(self, spec: ModelSpec) -> int:
        """Room for all panels, and for starting at a huge page."""
        heads, kv_heads, hidden, ffn = spec.num_heads, spec.num_kv_heads, spec.hidden_size, spec.intermediate_size
        attention = heads * spec.head_dim
        layer = (
            self._panel_bytes(attention + 2 * kv_heads * spec.head_dim, hidden),
            self._panel_bytes(hidden, attention),
            self._panel_bytes(2 * ffn, hidden, paired=True),
            self._panel_bytes(hidden, ffn),
        )
        return spec.num_layers * sum(layer) + self._panel_bytes(spec.vocab_size, hidden) + _HUGE_PAGE_BYTES

    def _panel_bytes(self, n: int, k: int, *, paired: bool = False) -> int:
        columns = len(packed_rows(n, self._kernels.ps_panel_columns(), paired=paired))
        return columns * (int(self._kernels.ps_padded_k(k)) if self._is_int8 else 4 * k)

    def _panels(self, num_bytes: int) -> int:
        """Address of the next free part of the arena; always whole cache lines, since panels are."""
        address = self._arena.data_ptr() + self._used_bytes
        self._used_bytes += num_bytes
        return address

    def _keep(self, tensor: torch.Tensor) -> int:
        self._owned.append(tensor)
        return tensor.data_ptr()

    def _vector(self, values: torch.Tensor | None) -> int | None:
        return None if values is None else self._keep(values.to(torch.float32).contiguous())

    def _linear(self, weight: torch.Tensor, bias: torch.Tensor | None, *, paired: bool = False) -> abi.Linear:
        """`paired`: the upper half of the rows (gate) and the lower half (up) share panels, for silu(gate) * up."""
        weight = weight.to(torch.float32).contiguous()
        n, k = weight.shape
        source_rows = packed_rows(n, self._kernels.ps_panel_columns(), paired=paired)
        packed = abi.Linear(n=n, k=k, bias=None if bias is None else self._keep(_pick(bias.float(), source_rows)))
        columns = len(source_rows)
        packed.panels = self._panels(self._panel_bytes(n, k, paired=paired))
        if not self._is_int8:
            self._kernels.ps_pack_f32(weight.data_ptr(), n, k, paired, packed.panels, self._num_threads)
            return packed
        scales, offsets = torch.empty(columns, dtype=torch.float32), torch.empty(columns, dtype=torch.int32)
        packed.scales, packed.offsets = self._keep(scales), self._keep(offsets)
        self._kernels.ps_pack_i8(
            weight.data_ptr(), n, k, paired, packed.panels, packed.scales, packed.offsets, self._num_threads
        )
        return packed


def packed_rows(n: int, panel_columns: int, *, paired: bool) -> torch.Tensor:
    """Source row of every packed column, -1 for padding; the same order as `source_row` in gemm_f32.h."""
    if not paired:
        columns = torch.arange(-(-n // panel_columns) * panel_columns)
        return torch.where(columns < n, columns, -1)
    half, outputs = panel_columns // 2, n // 2
    gate = torch.arange(-(-outputs // half) * half)
    gate = torch.where(gate < outputs, gate, -1).view(-1, 1, half)
    up = torch.where(gate >= 0, gate + outputs, -1)
    return torch.cat((gate, up), dim=1).flatten()


def _pick(values: torch.Tensor, source_rows: torch.Tensor) -> torch.Tensor:
    return torch.where(source_rows >= 0, values[source_rows.clamp(min=0)], 0.0).contiguous()
