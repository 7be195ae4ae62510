"""A report as one flat row of figures, for tables.

Names are those of `simulator.report.Report` with dots: `usual.ttft_s.p90`, `ecoserve.attained`, `kv_bytes`,
`prediction_error.p50`, `classes.chat.usual.attained` (with two classes or more), `layouts.phased`, `refused.429`.
`measured_rate` is the report's `rate`. Lists are counted: `num_replicas`,
`num_fleet_decisions`, `num_roles`, `num_proposals`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from simulator.grid.case import Value
from simulator.report import Report

_COUNTED = ("replicas", "roles", "fleet_decisions", "proposals")
_LEFT_OUT = (*_COUNTED, "classes", "windows", "seed", "rate")


def figures_of(report: Report) -> dict[str, Value]:
    """All of it that is a number, a word or a table of numbers."""
    figures = dict(_flat("", {name: getattr(report, name) for name in _kept(report)}))
    figures["measured_rate"] = report.rate
    for name in _COUNTED:
        figures[f"num_{name}"] = len(getattr(report, name))
    if len(report.classes) > 1:
        for kind in report.classes:
            figures.update(_flat(f"classes.{kind.name}.", msgspec.to_builtins(kind)))
            del figures[f"classes.{kind.name}.name"]
    figures["refused"] = sum(report.refused.values())
    return figures


def _kept(report: Report) -> list[str]:
    return [name for name in report.__struct_fields__ if name not in _LEFT_OUT]


def _flat(prefix: str, values: dict[str, object]) -> Iterator[tuple[str, Value]]:
    for name, value in values.items():
        if isinstance(value, msgspec.Struct):
            yield from _flat(f"{prefix}{name}.", msgspec.structs.asdict(value))
        elif isinstance(value, dict):
            yield from _flat(f"{prefix}{name}.", value)
        elif isinstance(value, float) and not math.isfinite(value):
            yield f"{prefix}{name}", None
        elif isinstance(value, str | int | float) or value is None:
            yield f"{prefix}{name}", value
