"""What one sweep measures, as a value: it names the results, so that a sweep can be resumed and never mixed up."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from contracts.errors import ConfigError
from contracts.kv import KVLayout
from contracts.phase import Layout
from contracts.request import Slo

EngineName = Literal["fake", "smollm2"]
AUTO = "auto"
FORCED = (Layout.COLOCATED.value, Layout.PHASED.value, Layout.DISAGGREGATED.value)
MODES = (*FORCED, AUTO)
"""How requests are laid out: each layout forced, and the router's own choice per request."""

FAKE_COST = {"a0": 0.006, "a1": 0.00035, "b0": 1e-9, "b1": 1e-9, "b2": 1e-6, "b3": 0.0004}
"""Seconds, as in `contracts.views.StepCost`: about 2,800 prompt tokens a second, decode steps of 10 ms."""
FAKE_SHAPE = {"num_layers": 24, "num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16", "block_size": 16}
"""12,288 bytes of KV a token, as Qwen2.5-0.5B in bfloat16."""
FAKE_CHECKED_BYTES = 256 << 10
"""Of each context, when it is first sampled: all of it would cost as much CPU as a decode step lasts."""
SMOLLM2_SHAPE = {"num_layers": 30, "num_kv_heads": 3, "head_dim": 64, "dtype": "float32", "block_size": 16}
MAX_REPLICAS = 16
BITS = 8e-6


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """Poisson arrivals of `requests` at `per_s`; lengths in tokens, uniform between both ends. The same for every
    point: only the words of the prompts differ, so that no prefix is cached."""

    requests: int
    per_s: float
    prompt_tokens: tuple[int, int]
    output_tokens: tuple[int, int]
    seed: int = 1

    def __post_init__(self) -> None:
        """Raises `ConfigError` naming the setting."""
        _require(self.requests >= 1, "requests", "must be at least 1")
        _require(self.per_s > 0.0, "per_s", "must be positive")
        for name, least in (("prompt_tokens", 1), ("output_tokens", 2)):  # one token alone has no time per token
            low, high = getattr(self, name)
            _require(least <= low <= high, name, f"must be LOW:HIGH with {least} <= LOW <= HIGH")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """One sweep. `replicas` serve in every layout: half of them prefill and half decode in the pools, on which `auto`
    chooses between a hand-off and the whole request on one replica. Requests that have not ended `grace_s` after the
    last arrival are given up, and count as missed."""

    engine: EngineName
    mbit_per_s: tuple[float, ...]
    modes: tuple[str, ...]
    workload: Workload
    slo: Slo
    replicas: int = 2
    grace_s: float = 5.0

    def __post_init__(self) -> None:
        """Raises `ConfigError` naming the setting."""
        rates = self.mbit_per_s
        _require(len(rates) >= 1 and all(rate > 0.0 for rate in rates), "rates", "must be positive numbers of Mbit/s")
        _require(list(rates) == sorted(set(rates)), "rates", "must ascend, each once")
        _require(bool(self.modes) and set(self.modes) <= set(MODES), "layouts", f"must be of {', '.join(MODES)}")
        _require(
            2 <= self.replicas <= MAX_REPLICAS and self.replicas % 2 == 0,
            "replicas",
            f"must be even, 2 to {MAX_REPLICAS}: half of them prefill and half decode when disaggregated",
        )
        _require(self.grace_s > 0.0, "grace_s", "must be positive")
        _require(self.slo.ttft_s > 0.0 and self.slo.tpot_s > 0.0, "slo", "must be positive")

    @property
    def kv_layout(self) -> KVLayout:
        """What of a sequence crosses the link."""
        return msgspec.convert(FAKE_SHAPE if self.engine == "fake" else SMOLLM2_SHAPE, KVLayout)

    @property
    def replica_settings(self) -> dict[str, Any]:
        """Tables of every replica's configuration. TCP carries the KV: it is what such links offer."""
        transfer = {"transport": "tcp"}
        if self.engine == "smollm2":
            return {"engine": {"threads": 1, "num_blocks": 1024}, "transfer": transfer}
        fake = {"cost": FAKE_COST, "num_blocks": 2048, "first_read_bytes": FAKE_CHECKED_BYTES, **FAKE_SHAPE}
        return {"kind": "fake", "fake": fake, "transfer": transfer}

    @property
    def router_settings(self) -> tuple[str, ...]:
        """Assignments of the router."""
        return (f"slo.ttft_s={self.slo.ttft_s}", f"slo.tpot_s={self.slo.tpot_s}")


def log_spaced(low: float, high: float, count: int) -> tuple[float, ...]:
    """`count` rates from `low` to `high`, each the same factor above the one before, to three digits."""
    _require(0.0 < low < high and count >= 2, "rates", "must be LOW:HIGH:COUNT with 0 < LOW < HIGH and COUNT >= 2")
    return tuple(float(f"{low * (high / low) ** (i / (count - 1)):.3g}") for i in range(count))


def _require(holds: bool, name: str, rule: str) -> None:
    if not holds:
        raise ConfigError(f"{name} {rule}", param=name)
