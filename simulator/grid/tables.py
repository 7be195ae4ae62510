"""Rows as CSV and as Parquet: the same rows give the same bytes.

Columns: the labels, `error`, then the figures by name. pyarrow is an optional back end, imported when it is wanted.
"""

from __future__ import annotations

import csv
import importlib
import importlib.util
import io
from collections.abc import Sequence
from typing import Any

from contracts.errors import ConfigError
from simulator.goodput import Goodput
from simulator.grid.case import Row, Value
from simulator.grid.scan import bounds

ERROR = "error"
_INT64 = 2**63


def missing_parquet() -> str | None:
    """Why no Parquet can be written, or None."""
    if importlib.util.find_spec("pyarrow") is None:
        return "pyarrow is not installed: pip install 'phaseserve[sweep]'"
    return None


def columns_of(rows: Sequence[Row]) -> dict[str, list[Value]]:
    """All rows, column by column. What a row has not is None."""
    labels = list(dict.fromkeys(name for row in rows for name in row.labels))
    figures = sorted({name for row in rows for name in row.figures} - {*labels, ERROR})
    columns: dict[str, list[Value]] = {name: [row.labels.get(name) for row in rows] for name in labels}
    columns[ERROR] = [row.error or None for row in rows]
    return columns | {name: [row.figures.get(name) for row in rows] for name in figures}


def as_csv(columns: dict[str, list[Value]]) -> bytes:
    """A line of names, then one for each row; None is empty. Numbers are written so that they read back the same."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return text.getvalue().encode()


def as_parquet(columns: dict[str, list[Value]]) -> bytes:
    """One column each of whole numbers, numbers, truth values or text. Raises `ConfigError` without pyarrow."""
    reason = missing_parquet()
    if reason is not None:
        raise ConfigError(reason, param="parquet")
    arrow: Any = importlib.import_module("pyarrow")
    parquet: Any = importlib.import_module("pyarrow.parquet")
    kinds = {str: arrow.string(), bool: arrow.bool_(), int: arrow.int64(), float: arrow.float64()}
    arrays = {}
    for name, values in columns.items():
        kind = _kind(values)
        arrays[name] = arrow.array([None if value is None else kind(value) for value in values], kinds[kind])
    sink = arrow.BufferOutputStream()
    parquet.write_table(arrow.table(arrays), sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _kind(values: Sequence[Value]) -> type:
    """The narrowest that holds all."""
    seen = {type(value) for value in values if value is not None}
    if str in seen or not seen or (bool in seen and len(seen) > 1):
        return str
    if bool in seen:
        return bool
    if float in seen:
        return float
    return int if all(-_INT64 <= value < _INT64 for value in values if isinstance(value, int)) else str


def goodput_columns(by: Sequence[str], found: dict[tuple[Value, ...], Goodput]) -> dict[str, list[Value]]:
    """One row for each line of a scan: its labels, goodput and dips by both clocks (rates, separated by spaces).
    `goodput_is_bound`: it is the highest rate of the scan, so that it may be more."""
    columns: dict[str, list[Value]] = {
        label: [name[number] for name in found] for number, label in enumerate(by)
    }  # fmt: skip
    columns["share"] = [one.share for one in found.values()]
    columns["goodput"] = [one.goodput for one in found.values()]
    columns["goodput_ecoserve"] = [one.goodput_ecoserve for one in found.values()]
    columns["goodput_is_bound"] = [bounds(one)[0] for one in found.values()]
    columns["goodput_ecoserve_is_bound"] = [bounds(one)[1] for one in found.values()]
    columns["dips"] = [_rates(one.dips) for one in found.values()]
    columns["dips_ecoserve"] = [_rates(one.dips_ecoserve) for one in found.values()]
    return columns


def _rates(rates: Sequence[float]) -> str:
    return " ".join(f"{rate:g}" for rate in rates)
