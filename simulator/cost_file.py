"""What `phaseserve profile` writes and `phaseserve simulate` reads: measured step costs of one engine, as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ConfigError
from simulator.cost import Fitted, Table
from simulator.fitting import Residuals
from simulator.scenario import KVShape


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cost` of a step with the machine to itself, `crowded` with busy neighbours (None: not measured); how well both
    fit their own measurements; what the engine has room for. `about` says what was measured, for people."""

    cost: Fitted | Table
    residuals: Residuals
    crowded: Fitted | Table | None = None
    crowded_residuals: Residuals | None = None
    kv: KVShape = KVShape()
    num_blocks: int = 4096
    max_context: int = 32_768
    about: str = ""

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("num_blocks", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"cost file: {name} must be at least 1", param=name)

    def of_group(self) -> dict[str, Any]:
        """What `simulator.scenario.Group` wants to know of it. The spread is that of the crowded steps where they were
        measured: a machine of one's own is the exception."""
        spread = self.residuals if self.crowded_residuals is None else self.crowded_residuals
        return {
            "cost": self.cost,
            "crowded": self.crowded,
            "noise": spread.noise,
            "kv": self.kv,
            "num_blocks": self.num_blocks,
            "max_context": self.max_context,
        }


def read_cost_file(path: Path) -> CostFile:
    """Raises `ConfigError`: it cannot be read, or is not what `phaseserve profile` writes."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostFile)
    except OSError as error:
        raise ConfigError(f"cost_file {path}: {error.strerror}", param="cost_file") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"cost_file {path}: {error}", param="cost_file") from error


def encoded(content: CostFile) -> bytes:
    """What the file holds."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
