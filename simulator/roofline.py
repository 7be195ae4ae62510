"""Step times from peak compute and memory bandwidth: whichever is the bottleneck, plus a fixed launch overhead.

A step reads the weights once and the KV of every context it attends to, and computes two operations a parameter and
token plus attention. Calibrated on published prefill rates, see `simulator.scenarios`.
"""

from __future__ import annotations

import math

import msgspec

from contracts.errors import ConfigError
from scheduling.step_shape import StepShape


class Roofline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="roofline", tag_field="kind"):
    """One replica as a whole (all its cards together).

    `peak_flop_s` and `memory_bytes_s` are what the data sheet says, of which `compute_share` and `memory_share` are
    reached. `active_params` are those a token passes through, `weight_bytes` what a step reads of them. Attention
    takes `attention_flop` operations for each pair of a token and a token of its context (4 * layers * heads *
    head_dim), and reads `kv_bytes_per_token`. `launch_s` is spent in every step, `row_s` for each decode row.
    """

    peak_flop_s: float
    memory_bytes_s: float
    active_params: float
    weight_bytes: float
    kv_bytes_per_token: float
    attention_flop: float = 0.0
    compute_share: float = 0.5
    memory_share: float = 0.7
    launch_s: float = 0.002
    row_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("peak_flop_s", "memory_bytes_s", "active_params", "weight_bytes", "kv_bytes_per_token"):
            if not 0.0 < getattr(self, name) < math.inf:
                raise ConfigError(f"cost.{name} must be positive", param=f"cost.{name}")
        for name in ("attention_flop", "launch_s", "row_s"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise ConfigError(f"cost.{name} must not be negative", param=f"cost.{name}")
        for name in ("compute_share", "memory_share"):
            if not 0.0 < getattr(self, name) <= 1.0:
                raise ConfigError(f"cost.{name} must be above 0 and at most 1", param=f"cost.{name}")

    def step_s(self, shape: StepShape) -> float:
        """See `simulator.cost.StepTimes`."""
        attended = shape.past_chunk + shape.chunk_sq / 2 + shape.decode_context
        read = shape.decode_context + (shape.past_chunk / (shape.tokens - shape.decodes) if shape.past_chunk else 0.0)
        compute_s = (2.0 * self.active_params * shape.tokens + self.attention_flop * attended) / (
            self.peak_flop_s * self.compute_share
        )
        memory_s = (self.weight_bytes + self.kv_bytes_per_token * read) / (self.memory_bytes_s * self.memory_share)
        return self.launch_s + self.row_s * shape.decodes + max(compute_s, memory_s)
