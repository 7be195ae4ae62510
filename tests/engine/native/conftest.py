"""Random models on the compiled executor, with a reference in plain torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional

from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.executor import StepInputs
from engine.kv_cache import KVCache
from engine.native_compile import native_available
from engine.native_executor import NativeCpuExecutor
from engine.rope import RopeTable, build_rope_table
from engine.weights import DecoderWeights, LayerWeights

CPU = torch.device("cpu")
NUM_BLOCKS = 48


class Span(NamedTuple):
    """`num_tokens` tokens of a sequence from position `start` on; its blocks are `blocks`."""

    tokens: torch.Tensor
    start: int
    num_tokens: int
    blocks: Sequence[int]


@dataclass(frozen=True)
class Rig:
    """One random model and the ways to run it. A span is (tokens, start, num_tokens, blocks)."""

    spec: ModelSpec
    weights: DecoderWeights
    rope: RopeTable
    block_size: int

    def executor(self, quantization: str = "none") -> tuple[NativeCpuExecutor, KVCache]:
        layout = KVLayout(
            num_layers=self.spec.num_layers,
            num_kv_heads=self.spec.num_kv_heads,
            head_dim=self.spec.head_dim,
            block_size=self.block_size,
            dtype="float32",
        )
        cache = KVCache(layout, NUM_BLOCKS, CPU)
        return NativeCpuExecutor(self.weights, self.spec, self.rope, cache, quantization), cache

    def inputs(self, *spans: tuple[Any, ...]) -> StepInputs:
        return step_inputs([Span(*span) for span in spans], self.block_size)

    def run(self, executor: NativeCpuExecutor, *spans: tuple[Any, ...]) -> torch.Tensor:
        """Logits of every row of one step, [N, vocab]."""
        inputs = self.inputs(*spans)
        return executor.logits(executor.run_layers(executor.embed(inputs), inputs, 0, self.spec.num_layers))

    def run_in_chunks(self, executor: NativeCpuExecutor, chunk: int, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of one sequence fed `chunk` tokens a step."""
        blocks = self.blocks(3)
        starts = range(0, len(tokens), chunk)
        return torch.cat([self.run(executor, (tokens, s, min(chunk, len(tokens) - s), blocks)) for s in starts])

    def reference(self, tokens: torch.Tensor) -> torch.Tensor:
        return reference(self, tokens)

    def tokens(self, count: int, seed: int) -> torch.Tensor:
        return torch.randint(self.spec.vocab_size, (count,), generator=torch.Generator().manual_seed(seed))

    def blocks(self, seed: int) -> list[int]:
        """All blocks of the cache in random order."""
        order: list[int] = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed)).tolist()
        return order


def step_inputs(spans: Sequence[Span], block_size: int) -> StepInputs:
    counts = [span.num_tokens for span in spans]
    positions = [torch.arange(span.start, span.start + span.num_tokens) for span in spans]
    tables = [torch.tensor(span.blocks) for span in spans]
    slots = [table[p // block_size] * block_size + p % block_size for table, p in zip(tables, positions, strict=True)]
    return StepInputs(
        token_ids=torch.cat([span.tokens[span.start : span.start + span.num_tokens] for span in spans]),
        positions=torch.cat(positions).int(),
        row_sequence=torch.repeat_interleave(torch.arange(len(spans)), torch.tensor(counts)).int(),
        query_start=torch.tensor([0, *counts]).cumsum(0).int(),
        context_len=torch.tensor([span.start + span.num_tokens for span in spans]).int(),
        block_table=torch.nn.utils.rnn.pad_sequence(tables, batch_first=True).int(),
        slots=torch.cat(slots),
        max_query=max(counts),
        max_context=max(span.start + span.num_tokens for span in spans),
    )


def random_weights(spec: ModelSpec, seed: int) -> DecoderWeights:
    random = torch.Generator().manual_seed(seed)

    def matrix(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=random) / math.sqrt(columns)

    def vector(size: int, mean: float, present: bool = True) -> torch.Tensor | None:
        return mean + 0.3 * torch.randn(size, generator=random) if present else None

    heads, kv_heads, head_dim = spec.num_heads, spec.num_kv_heads, spec.head_dim
    hidden, ffn, qkv = spec.hidden_size, spec.intermediate_size, (heads + 2 * kv_heads) * head_dim
    layers = [
        LayerWeights(
            input_norm=1 + 0.3 * torch.randn(hidden, generator=random),
            qkv=matrix(qkv, hidden),
            qkv_bias=vector(qkv, 0.0, spec.attention_bias),
            q_norm=vector(head_dim, 1.0, spec.qk_norm),
            k_norm=vector(head_dim, 1.0, spec.qk_norm),
            o=matrix(hidden, heads * head_dim),
            o_bias=vector(hidden, 0.0, spec.attention_output_bias),
            post_norm=1 + 0.3 * torch.randn(hidden, generator=random),
            gate_up=matrix(2 * ffn, hidden),
            gate_up_bias=vector(2 * ffn, 0.0, spec.mlp_bias),
            down=matrix(hidden, ffn),
            down_bias=vector(hidden, 0.0, spec.mlp_bias),
        )
        for _ in range(spec.num_layers)
    ]
    return DecoderWeights(
        embedding=torch.randn(spec.vocab_size, hidden, generator=random),
        layers=layers,
        final_norm=1 + 0.3 * torch.randn(hidden, generator=random),
        lm_head=matrix(spec.vocab_size, hidden),
    )


def reference(rig: Rig, tokens: torch.Tensor) -> torch.Tensor:
    """Logits of one whole sequence, [len, vocab], in the plainest torch and in float64."""
    spec, weights = rig.spec, rig.weights
    heads, kv_heads, head_dim, n = spec.num_heads, spec.num_kv_heads, spec.head_dim, len(tokens)
    cos, sin = rig.rope.cos[:n, None].double(), rig.rope.sin[:n, None].double()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(x, weight.shape, weight.double(), spec.rms_norm_eps)

    def linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        out = x @ weight.double().T
        return out if bias is None else out + bias.double()

    def turn(x: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
        a, b = (x if weight is None else norm(x, weight)).chunk(2, dim=-1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).transpose(0, 1)

    x = weights.embedding[tokens].double()
    for layer in weights.layers:
        qkv = linear(norm(x, layer.input_norm), layer.qkv, layer.qkv_bias).view(n, -1, head_dim)
        query, key, value = torch.split(qkv, [heads, kv_heads, kv_heads], dim=1)
        attended = functional.scaled_dot_product_attention(
            turn(query, layer.q_norm),
            turn(key, layer.k_norm),
            value.transpose(0, 1),
            is_causal=True,
            enable_gqa=True,
        )
        x = x + linear(attended.transpose(0, 1).reshape(n, -1), layer.o, layer.o_bias)
        gate, up = linear(norm(x, layer.post_norm), layer.gate_up, layer.gate_up_bias).chunk(2, dim=-1)
        x = x + linear(functional.silu(gate) * up, layer.down, layer.down_bias)
    return linear(norm(x, weights.final_norm), weights.lm_head, None)


MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig() -> MakeRig:
    """`make_rig(**spec)`. Skipped where the kernels cannot be compiled: there is nothing to test."""
    reason = native_available()
    if reason is not None:
        pytest.skip(reason)

    def make(num_layers: int = 2, seed: int = 0, block_size: int = 16, **shape: Any) -> Rig:
        spec = ModelSpec(
            name="random",
            family="llama",
            rms_norm_eps=1e-5,
            rope_theta=10_000.0,
            max_context=512,
            tie_word_embeddings=False,
            num_layers=num_layers,
            **{"vocab_size": 77, "hidden_size": 64, "intermediate_size": 96, **shape},
        )
        return Rig(spec, random_weights(spec, seed), build_rope_table(spec, spec.max_context, CPU), block_size)

    return make
