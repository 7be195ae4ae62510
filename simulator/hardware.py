"""One kind of accelerator as numbers: what its data sheet says, and which share of that is reached."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from simulator.bounds import LONGEST_STEP_S, bound, bound_all
from simulator.sourced import convert, known, read_numbers

FOLDER = Path(__file__).parent / "hardware_files"
WEIGHT_BYTES = {"float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "float8": 1.0, "int8": 1.0}
"""Bytes of a weight by the dtype that the matrix units compute in."""
_MOST = 1e24
_MOST_TOGETHER = 1_000_000


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
        where = f"hardware {self.name}: "
        bound_all(self, where, "memory_bytes", "memory_bytes_s", "link_bytes_s", most=_MOST, above=True)
        bound_all(self, where, "max_devices", "tile_tokens", least=1, most=_MOST_TOGETHER)
        shares = ("compute_share", "attention_share", "memory_share", "link_share", "memory_use")
        bound_all(self, where, *shares, most=1.0, above=True)
        bound_all(self, where, "link_latency_s", "launch_s", "row_s", "layer_launch_s", most=LONGEST_STEP_S)
        bound_all(self, where, "reserve_bytes", "bridge_bytes_s", most=_MOST)
        if not self.flop_s or set(self.flop_s) - set(WEIGHT_BYTES):
            known = ", ".join(WEIGHT_BYTES)
            raise ConfigError(f"{where}flop_s must hold dtypes of {known}", param="hardware.flop_s")
        for rate in self.flop_s.values():
            bound(f"{where}flop_s", rate, most=_MOST, above=True)

    def peak_flop_s(self, dtype: str) -> float:
        """Raises `ConfigError` when it does not compute in that dtype."""
        if dtype not in self.flop_s:
            has = ", ".join(self.flop_s)
            raise ConfigError(f"hardware {self.name} does not compute in {dtype}; it has {has}", param="dtype")
        return self.flop_s[dtype]


def hardware(name: str) -> Hardware:
    """A packaged device by its name, or a user's own by the path of its file. Raises `ConfigError`."""
    return convert(read_numbers(FOLDER, name, "hardware")[0], Hardware, "hardware", name)


def hardware_names() -> list[str]:
    """The packaged ones."""
    return known(FOLDER)
