"""A case of a grid, the row that it becomes, and the name under which the row is kept."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path, PurePath

import msgspec

from contracts.errors import ConfigError
from simulator.report import Report
from simulator.roofline import Roofline
from simulator.scenario import Scenario

Value = str | int | float | bool | None
Extra = Callable[[Report], Mapping[str, Value]]
"""More figures of a report; a function of a module, so that worker processes can import it."""

DECIDES = ("contracts", "scheduling", "simulator")
"""Rooms that decide what a report says."""
_SHOWS = ("grid", "drawing")
"""Folders of `simulator` that change no report."""


class Case(msgspec.Struct, frozen=True):
    """One run of a grid. `labels` say which one it is, in rows, files and plots: axis to value."""

    labels: Mapping[str, str | int | float]
    scenario: Scenario


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """What a case gave. `figures` are those of `simulator.grid.figures`; none when it failed, and `error` says why.

    `wall_s` is how long the run took; it is in the store only, and in no table.
    """

    key: str
    labels: Mapping[str, str | int | float]
    figures: Mapping[str, Value]
    error: str = ""
    wall_s: float = 0.0

    def __getitem__(self, name: str) -> Value:
        """A label or a figure. Raises `KeyError`."""
        return self.labels[name] if name in self.labels else self.figures[name]

    def number(self, name: str) -> float:
        """A label or a figure that is a number. Raises `KeyError` when there is none of that name, `TypeError` when
        it is something else."""
        value = self[name]
        if not isinstance(value, int | float):
            raise TypeError(f"{name} is {value!r}, not a number")
        return float(value)


def key_of(scenario: Scenario, extra: Extra | None, code: str) -> str:
    """Names all that a row follows from: the scenario, what is in the files that it names (trace, model, hardware),
    `extra` itself, the code."""
    digest = hashlib.sha256(msgspec.json.encode(scenario, order="deterministic"))
    trace = scenario.workload.trace
    if trace is not None:
        digest.update(_content(trace.path))
    for group in scenario.fleet:
        if isinstance(group.cost, Roofline):  # it names its files
            digest.update(msgspec.json.encode((group.cost.of, group.cost.on)))
    if extra is not None:
        digest.update(f"{extra.__module__}.{extra.__qualname__}\n{inspect.getsource(extra)}".encode())
    return f"{digest.hexdigest()[:24]}-{code}"


def code_version() -> str:
    """A digest of the source that decides what a report says: `contracts`, `scheduling` and `simulator`."""
    root = Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for room in DECIDES:
        for path in sorted((root / room).rglob("*.py")):
            name = path.relative_to(root)
            if decides(name):
                digest.update(str(name).encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def decides(name: PurePath) -> bool:
    """Whether this file of one of the rooms, named from the root, is among that source."""
    return name.suffix == ".py" and name.parts[:2] not in {("simulator", folder) for folder in _SHOWS}


@cache
def _content(path: str) -> bytes:
    try:
        return hashlib.sha256(Path(path).read_bytes()).digest()
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror}", param="trace.path") from error
