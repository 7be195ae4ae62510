"""One kind of accelerator as numbers: what its data sheet says, and which share of that is reached."""

from __future__ import annotations

import math
from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from simulator.sourced import convert, known, read_numbers

FOLDER = Path(__file__).parent / "hardware_files"
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0}
"""Bytes of a weight by the dtype that the matrix units compute in."""


class Hardware(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One device. Rates are per device and second; `flop_s` is the dense peak by dtype of the weights.

    `link_bytes_s` (one direction) and `link_latency_s` (a step of a ring) join at most `max_devices` in a node;
    `bridge_bytes_s`, if any, joins pairs, and serves groups of two.
    Large matrix products reach `compute_share` of the peak, attention `attention_share`; reading memory
    `memory_share`, a collective `link_share`. Rows of a matrix product are computed in tiles of `tile_tokens`.
    A step costs the host `launch_s`, and `row_s` for each decode row; its kernels are launched in `layer_launch_s` a
    layer, beside the work of earlier ones. `reserve_bytes` are gone before weights and KV come, and of the memory only
    `memory_use` is used.
    """

    name: str
    flop_s: dict[str, float]
    memory_bytes: float
    memory_bytes_s: float
    link_bytes_s: float
    link_latency_s: float
    max_devices: int
    compute_share: float
    attention_share: float
    memory_share: float
    link_share: float
    tile_tokens: int
    launch_s: float
    row_s: float
    layer_launch_s: float
    reserve_bytes: float
    memory_use: float
    bridge_bytes_s: float = 0.0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the number."""
        for name in ("memory_bytes", "memory_bytes_s", "link_bytes_s", "max_devices", "tile_tokens"):
            self._check(name, 0.0 < getattr(self, name) < math.inf, "be positive")
        for name in ("compute_share", "attention_share", "memory_share", "link_share", "memory_use"):
            self._check(name, 0.0 < getattr(self, name) <= 1.0, "lie above 0 and not above 1")
        for name in ("link_latency_s", "launch_s", "row_s", "layer_launch_s", "reserve_bytes", "bridge_bytes_s"):
            self._check(name, 0.0 <= getattr(self, name) < math.inf, "not be negative")
        self._check("flop_s", bool(self.flop_s) and not set(self.flop_s) - set(WEIGHT_BYTES), _DTYPES)
        self._check("flop_s", all(0.0 < rate < math.inf for rate in self.flop_s.values()), "be positive")

    def _check(self, name: str, holds: bool, must: str) -> None:
        if not holds:
            raise ConfigError(f"hardware {self.name}: {name} must {must}", param=f"hardware.{name}")

    def peak_flop_s(self, dtype: str) -> float:
        """Raises `ConfigError` when it does not compute in that dtype."""
        if dtype not in self.flop_s:
            has = ", ".join(self.flop_s)
            raise ConfigError(f"hardware {self.name} does not compute in {dtype}; it has {has}", param="dtype")
        return self.flop_s[dtype]


_DTYPES = f"hold dtypes of {', '.join(WEIGHT_BYTES)}"


def hardware(name: str) -> Hardware:
    """A packaged device by its name, or a user's own by the path of its file. Raises `ConfigError`."""
    return convert(read_numbers(FOLDER, name, "hardware")[0], Hardware, "hardware", name)


def hardware_names() -> list[str]:
    """The packaged ones."""
    return known(FOLDER)
