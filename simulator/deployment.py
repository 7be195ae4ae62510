"""Whether a model fits on so many devices, and how much KV it leaves room for."""

from __future__ import annotations

from functools import cached_property

import msgspec

from contracts.errors import ConfigError
from simulator.hardware import Hardware
from simulator.models import Model
from simulator.roofline import ACTIVATION_BYTES, Roofline
from simulator.scenario import KVShape

_SAMPLED_ROWS = 256
_LOGIT_BYTES = 4.0


class Deployment(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, dict=True):
    """One replica: `tp` devices in each of `pp` stages. Model and hardware by name, path or as tables.

    Steps of up to `chunk_tokens` must have room for their activations. Raises `ConfigError`: an unknown name, a layout
    that is not possible, or a model that does not fit, with what it needs and what there is.
    """

    model: str | Model
    hardware: str | Hardware
    tp: int = 1
    pp: int = 1
    dtype: str = ""
    kv_dtype: str = "bfloat16"
    block_size: int = 16
    chunk_tokens: int = 2048

    def __post_init__(self) -> None:
        if self.block_size < 1 or self.chunk_tokens < 1:
            raise ConfigError("block_size and chunk_tokens must be at least 1", param="block_size")
        if self.num_blocks < 1:
            of, on = self.cost.of, self.cost.on
            has = on.memory_bytes * on.memory_use / 1e9
            need = max(self._fixed_bytes(stage) + self._block_bytes(stage) for stage in range(self.pp)) / 1e9
            raise ConfigError(
                f"{of.name} does not fit on {on.name} with tp {self.tp} and pp {self.pp}: a device needs {need:.1f} GB"
                f" for its part of the weights, activations and one block of KV, and has {has:.1f} GB to use",
                param="tp",
            )

    @cached_property
    def cost(self) -> Roofline:
        """How long its steps take."""
        return Roofline(
            model=self.model, hardware=self.hardware, tp=self.tp, pp=self.pp, dtype=self.dtype, kv_dtype=self.kv_dtype
        )

    @property
    def kv(self) -> KVShape:
        """The KV of a token as it crosses the network, nothing of it twice: a latent counts as one head."""
        of = self.cost.of
        heads, dim = (1, of.kv_values // 2) if of.mla is not None else (of.num_kv_heads, of.head_dim)
        return KVShape(
            num_layers=of.num_layers,
            num_kv_heads=heads,
            head_dim=dim,
            block_size=self.block_size,
            dtype=self.kv_dtype,
        )

    @property
    def kv_bytes_per_token(self) -> int:
        """Of `kv`, in bytes."""
        return self.kv.layout.bytes_per_token

    @cached_property
    def num_blocks(self) -> int:
        """KV blocks in what weights, activations and libraries leave of the fullest device."""
        on = self.cost.on
        has = on.memory_bytes * on.memory_use
        left = [int((has - self._fixed_bytes(stage)) // self._block_bytes(stage)) for stage in range(self.pp)]
        return max(0, min(left))

    @property
    def max_context(self) -> int:
        """Tokens of prompt and output: the model's, or what the KV has room for."""
        return min(self.cost.of.max_context, self.num_blocks * self.block_size)

    def _block_bytes(self, stage: int) -> float:
        return self.cost.stage_kv_bytes(self.cost.stage_layers()[stage]) * self.block_size

    def _fixed_bytes(self, stage: int) -> float:
        of = self.cost.of
        row = (4 * of.hidden_size + 2 * of.intermediate_size / self.tp) * ACTIVATION_BYTES
        logits = _SAMPLED_ROWS * of.vocab_size * _LOGIT_BYTES if stage == self.pp - 1 else 0.0
        return self.cost.stage_weight_bytes(stage) + self.chunk_tokens * row + logits + self.cost.on.reserve_bytes
