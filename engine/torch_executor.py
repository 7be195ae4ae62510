"""The decoder of the Llama family in torch: any device, any float dtype, driven by the model spec alone.

Llama 2/3, SmolLM2, Mistral, Qwen2 and Qwen3 differ in head counts, biases, QK norm, rope and tying only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

from contracts.engine import OnLayerDone
from contracts.model import ModelSpec
from engine.attention import AttendLayer, Attention
from engine.executor import StepInputs
from engine.kv_cache import KVCache
from engine.linear import Linear, MakeLinear
from engine.rope import RopeTable
from engine.weights import DecoderWeights, LayerWeights


@dataclass(frozen=True, slots=True)
class _Layer:
    """One decoder layer, ready to run. `qk_norm` [H + G, head_dim] holds each head's norm weight, or None."""

    input_norm: torch.Tensor
    qkv: Linear
    qk_norm: torch.Tensor | None
    o: Linear
    post_norm: torch.Tensor
    gate_up: Linear
    down: Linear


@dataclass(frozen=True, slots=True)
class _StepPlan:
    """What all layers of one step share. cos and sin are [N, 1, head_dim]; the first half of sin is negated."""

    inputs: StepInputs
    cos: torch.Tensor
    sin: torch.Tensor
    blocks: torch.Tensor
    offsets: torch.Tensor
    attend: AttendLayer


class TorchExecutor:
    """A `LayerExecutor` in plain torch. Weights are taken layer by layer and handed to `make_linear`."""

    def __init__(
        self,
        weights: DecoderWeights,
        spec: ModelSpec,
        rope: RopeTable,
        kv_cache: KVCache,
        make_linear: MakeLinear,
        attention: Attention,
    ) -> None:
        self._spec = spec
        self._rope = rope
        self._kv_cache = kv_cache
        self._attention = attention
        self._embedding = weights.embedding
        self._final_norm = weights.final_norm
        self._layers = tuple(_ready(layer, spec, make_linear) for layer in weights.layers)
        self._lm_head = make_linear(weights.lm_head, None)
        self._plan: _StepPlan | None = None

    def embed(self, inputs: StepInputs) -> torch.Tensor:
        """Token embeddings, [N, hidden_size]."""
        return functional.embedding(inputs.token_ids, self._embedding)

    def run_layers(
        self,
        hidden: torch.Tensor,
        inputs: StepInputs,
        first: int,
        last: int,
        on_layer_done: OnLayerDone | None = None,
    ) -> torch.Tensor:
        """Layers `first` to `last - 1`; `hidden` is overwritten."""
        plan = self._plan_of(inputs)
        for index in range(first, last):
            self._run_layer(hidden, index, plan, on_layer_done)
        return hidden

    def logits(self, rows: torch.Tensor) -> torch.Tensor:
        """Final norm and lm_head: float32 [R, vocab_size]."""
        return self._lm_head(self._norm(rows, self._final_norm)).float()

    def _plan_of(self, inputs: StepInputs) -> _StepPlan:
        """The plan of this step, worked out at its first layer range only."""
        if self._plan is None or self._plan.inputs is not inputs:
            block_size = self._kv_cache.layout.block_size
            dtype = self._embedding.dtype
            cos, sin = (table[inputs.positions].to(dtype)[:, None, :] for table in (self._rope.cos, self._rope.sin))
            self._plan = _StepPlan(
                inputs=inputs,
                cos=torch.cat((cos, cos), dim=-1),
                sin=torch.cat((-sin, sin), dim=-1),
                blocks=inputs.slots // block_size,
                offsets=inputs.slots % block_size,
                attend=self._attention.plan(inputs, dtype),
            )
        return self._plan

    def _run_layer(self, hidden: torch.Tensor, index: int, plan: _StepPlan, on_layer_done: OnLayerDone | None) -> None:
        layer = self._layers[index]
        query, key, value = self._project(layer, self._norm(hidden, layer.input_norm), plan)
        self._kv_cache.write(index, plan.blocks, plan.offsets, key, value)
        if on_layer_done is not None:
            on_layer_done(index)
        hidden += layer.o(plan.attend(query, self._kv_cache.layers[index]))
        gate_up = layer.gate_up(self._norm(hidden, layer.post_norm))
        gate, up = gate_up.chunk(2, dim=-1)
        hidden += layer.down(functional.silu(gate).mul_(up))

    def _project(
        self, layer: _Layer, x: torch.Tensor, plan: _StepPlan
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query [N, H, D], key and value [N, G, D], rotated."""
        spec = self._spec
        heads = layer.qkv(x).view(x.shape[0], spec.num_heads + 2 * spec.num_kv_heads, spec.head_dim)
        rotated, value = heads[:, : -spec.num_kv_heads], heads[:, -spec.num_kv_heads :]
        if layer.qk_norm is not None:
            rotated = functional.rms_norm(rotated, (spec.head_dim,), eps=spec.rms_norm_eps) * layer.qk_norm
        rotated = _rotate(rotated, plan.cos, plan.sin)
        return rotated[:, : spec.num_heads], rotated[:, spec.num_heads :], value

    def _norm(self, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight, self._spec.rms_norm_eps)


def _ready(layer: LayerWeights, spec: ModelSpec, make_linear: MakeLinear) -> _Layer:
    qk_norm = None
    if layer.q_norm is not None and layer.k_norm is not None:
        qk_norm = torch.cat((layer.q_norm.expand(spec.num_heads, -1), layer.k_norm.expand(spec.num_kv_heads, -1)))
    return _Layer(
        input_norm=layer.input_norm,
        qkv=make_linear(layer.qkv, layer.qkv_bias),
        qk_norm=qk_norm,
        o=make_linear(layer.o, layer.o_bias),
        post_norm=layer.post_norm,
        gate_up=make_linear(layer.gate_up, layer.gate_up_bias),
        down=make_linear(layer.down, layer.down_bias),
    )


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [N, heads, D]: halves swapped, the sign of the swap is in `sin`."""
    first, second = x.chunk(2, dim=-1)
    return torch.addcmul(x * cos, torch.cat((second, first), dim=-1), sin)
