"""Results on disk: every finished point at once, nothing half-written, and never points of two different sweeps."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from experiments.bandwidth_sweep.options import Options
from experiments.bandwidth_sweep.seen import Point
from experiments.bandwidth_sweep.summary import Percentiles, Summary

POINTS = "points.jsonl"


class Store:
    """The folder of one sweep. Points that an earlier run of the same sweep left there are kept.

    Raises `ConfigError` when the folder holds points of other options.
    """

    def __init__(self, folder: Path, options: Options) -> None:
        self.folder = folder
        self._options = options
        folder.mkdir(parents=True, exist_ok=True)
        self.points: list[Point] = self._read()

    def has(self, mode: str, mbit_per_s: float) -> bool:
        """Whether this point was measured already."""
        return any(point.mode == mode and point.mbit_per_s == mbit_per_s for point in self.points)

    def add(self, point: Point) -> None:
        """Keep one more point."""
        self.points.append(point)
        lines = [msgspec.json.encode(self._options), *(msgspec.json.encode(point) for point in self.points)]
        write_whole(self.folder / POINTS, b"\n".join(lines) + b"\n")

    def _read(self) -> list[Point]:
        path = self.folder / POINTS
        if not path.exists():
            return []
        first, *others = path.read_bytes().splitlines()
        if first != msgspec.json.encode(self._options):
            raise ConfigError(f"{path} is of a sweep with other options: name another --out, or remove it", param="out")
        return [msgspec.json.decode(line, type=Point) for line in others]


def write_whole(path: Path, content: bytes) -> None:
    """The file appears with all of its content or not at all."""
    beside = path.with_name(path.name + ".part")
    beside.write_bytes(content)
    beside.replace(path)


def as_csv(summaries: Sequence[Summary]) -> str:
    """One line for each point, times in seconds. What there is none of is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(_names())
    for summary in summaries:
        row: list[object] = []
        for name in Summary.__struct_fields__:
            value = getattr(summary, name)
            if isinstance(value, Percentiles):
                row += [f"{each:.5f}" for each in msgspec.structs.astuple(value)]
            else:
                row.append("" if value is None else f"{value:.5g}" if isinstance(value, float) else value)
        writer.writerow(row)
    return text.getvalue()


def _names() -> list[str]:
    kinds = {field.name: field.type for field in msgspec.structs.fields(Summary)}
    names = []
    for name, kind in kinds.items():
        names += [f"{name}_{level}_s" for level in Percentiles.__struct_fields__] if kind is Percentiles else [name]
    return names
