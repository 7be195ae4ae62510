"""The limits of this machine, measured in the same run: GEMM rate and the rate at which weights can be read."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from contracts.model import ModelSpec


@dataclass(frozen=True, slots=True)
class Roofline:
    """fp32 GEMM in FLOP/s and reading of memory in bytes/s, with the given threads."""

    gemm_flops: float
    read_bytes: float


def _best_s(run: Callable[[], object], repeats: int) -> float:
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - began)
    return best


def measure(threads: int) -> Roofline:
    """Best of many: a 1024-cube fp32 GEMM, and a matrix-vector product over 256 MiB of weights."""
    torch.set_num_threads(threads)
    with torch.inference_mode():
        a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
        gemm_s = _best_s(lambda: a @ b, 20)
        weights, vector = torch.rand(65536, 1024), torch.rand(1024)
        read_s = _best_s(lambda: torch.mv(weights, vector), 12)
    return Roofline(2 * 1024**3 / gemm_s, weights.numel() * 4 / read_s)


def prefill_limit(spec: ModelSpec, roofline: Roofline, num_tokens: int) -> float:
    """Highest prefill rate (tokens/s) at which the GEMMs and causal attention of a prompt could run in fp32."""
    linear = 2 * (layer_weights(spec)) * num_tokens
    attention = 2 * 2 * spec.num_layers * spec.num_heads * spec.head_dim * num_tokens * num_tokens / 2
    return num_tokens / ((linear + attention) / roofline.gemm_flops)


def decode_limit(spec: ModelSpec, roofline: Roofline, streams: int, context: int, weight_bytes: float) -> float:
    """Highest decode rate (tokens/s over all streams): weights once a step and each stream's fp32 KV, from memory."""
    kv = 2 * spec.num_layers * spec.num_kv_heads * spec.head_dim * 4 * context * streams
    weights = (layer_weights(spec) + spec.vocab_size * spec.hidden_size) * weight_bytes
    return streams / ((weights + kv) / roofline.read_bytes)


def layer_weights(spec: ModelSpec) -> int:
    """Parameters in the linears of all layers."""
    heads = (spec.num_heads + 2 * spec.num_kv_heads) * spec.head_dim
    attention = spec.hidden_size * heads + spec.num_heads * spec.head_dim * spec.hidden_size
    return spec.num_layers * (attention + 3 * spec.hidden_size * spec.intermediate_size)
