"""What `phaseserve profile` writes and `phaseserve simulate` reads: measured step costs of one engine, as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ConfigError
from scheduling.step_shape import StepShape
from simulator.cost import Fitted, Table
from simulator.fitting import Residuals, Samples, fit, residuals, tabulate
from simulator.scenario import KVShape

KINDS: dict[str, Callable[[Samples], Fitted | Table]] = {"fitted": fit, "table": tabulate}


class Measured(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of step: its shape as in `scheduling.step_shape.StepShape`, and the seconds of each time it was run,
    with the machine to itself and beside busy neighbours."""

    tokens: int
    past_chunk: int
    chunk_sq: int
    decode_context: int
    decodes: int
    past: int
    alone_s: tuple[float, ...]
    crowded_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ConfigError` for what cannot have been measured."""
        counts = (self.tokens, self.past_chunk, self.chunk_sq, self.decode_context, self.decodes, self.past)
        times = (*self.alone_s, *self.crowded_s)
        if (
            self.tokens < 1
            or min(counts) < 0
            or not self.alone_s
            or not all(0.0 < time_s < math.inf for time_s in times)
        ):
            raise ConfigError(
                "cost file: a measured step has tokens, no negative count, positive times", param="measured"
            )

    @property
    def shape(self) -> StepShape:
        """What a cost model is asked with."""
        return StepShape(
            tokens=self.tokens,
            past_chunk=self.past_chunk,
            chunk_sq=self.chunk_sq,
            decode_context=self.decode_context,
            decodes=self.decodes,
            past=self.past,
        )


class CostFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`cost` of a step with the machine to itself, `crowded` with busy neighbours (None: not measured); how well both
    fit their own measurements, which are in `measured`; what the engine has room for. `about` says what was measured,
    for people."""

    cost: Fitted | Table
    residuals: Residuals
    crowded: Fitted | Table | None = None
    crowded_residuals: Residuals | None = None
    kv: KVShape = KVShape()
    num_blocks: int = 4096
    max_context: int = 32_768
    about: str = ""
    measured: tuple[Measured, ...] = ()

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in ("num_blocks", "max_context"):
            if getattr(self, name) < 1:
                raise ConfigError(f"cost file: {name} must be at least 1", param=name)

    def of_group(self) -> dict[str, Any]:
        """What `simulator.scenario.Group` wants to know of it. The spread is that of the crowded steps where they were
        measured: a machine of one's own is the exception. So is what cores start from: neighbours load as it does."""
        spread = self.residuals if self.crowded_residuals is None else self.crowded_residuals
        return {
            "cost": self.cost,
            "crowded": self.crowded,
            "noise": spread.noise,
            "believed": self._believed(),
            "kv": self.kv,
            "num_blocks": self.num_blocks,
            "max_context": self.max_context,
        }

    def _believed(self) -> Fitted | None:
        cost = self.crowded or self.cost
        if isinstance(cost, Fitted):
            return cost
        return fit([(one.shape, one.crowded_s or one.alone_s) for one in self.measured]) if self.measured else None

    def refitted(self, kind: str) -> CostFile:
        """The same measurements as a cost model of another kind (`KINDS`). A file without them stays as it is."""
        return with_costs(self, kind) if self.measured else self


def with_costs(content: CostFile, kind: str) -> CostFile:
    """`content` with the models that fit what it has measured. Raises `ValueError` when they cannot be fitted."""
    alone = [(one.shape, one.alone_s) for one in content.measured]
    beside = [(one.shape, one.crowded_s) for one in content.measured if one.crowded_s]
    cost, off = _fitted(kind, alone)
    crowded, crowded_off = _fitted(kind, beside) if beside else (None, None)
    return msgspec.structs.replace(content, cost=cost, residuals=off, crowded=crowded, crowded_residuals=crowded_off)


def _fitted(kind: str, samples: Sequence[tuple[StepShape, tuple[float, ...]]]) -> tuple[Fitted | Table, Residuals]:
    model = KINDS[kind](samples)
    return model, residuals(model, samples)


def read_cost_file(path: Path) -> CostFile:
    """Raises `ConfigError`: it cannot be read, or is not what `phaseserve profile` writes."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=CostFile)
    except OSError as error:
        raise ConfigError(f"cost_file {path}: {error.strerror}", param="cost_file") from error
    except (ValueError, RecursionError) as error:  # not JSON, not text, no path
        raise ConfigError(f"cost_file {path}: {error}", param="cost_file") from error


def encoded(content: CostFile) -> bytes:
    """What the file holds."""
    return msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n"
