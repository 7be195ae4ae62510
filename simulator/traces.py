"""Recorded arrivals and lengths: the Azure 2023 CSV files and the Mooncake JSON lines, read as they are published."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime
from functools import lru_cache, partial
from pathlib import Path
from stat import S_ISREG
from typing import Any, TypeVar

import msgspec

from contracts.errors import ConfigError
from simulator.bounds import bound, bound_all
from simulator.lengths import MOST_TOKENS

_T = TypeVar("_T")
AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
_BEYOND = "beyond the last column"
MOST_SPEED = 1e12
MOST_ROWS = 100_000_000
MOONCAKE_BLOCK = 512
"""Tokens that one of Mooncake's `hash_ids` stands for."""


class TraceRow(msgspec.Struct, frozen=True):
    """One recorded request: `at_s` since the first one, `hash_ids` name its prompt's pieces of 512 tokens if known."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    hash_ids: tuple[int, ...] = ()


class Trace(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`path` of a trace. Its time runs `speed` times as fast; `repeat` plays it again and again.

    Of its requests in order of time the first `skip` are left out, and `most` are taken (0: all of them). The file is
    JSON lines if its name ends with `.jsonl`, else CSV.
    """

    path: str
    speed: float = 1.0
    repeat: bool = False
    skip: int = 0
    most: int = 0

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        bound("trace.speed", self.speed, 1.0 / MOST_SPEED, MOST_SPEED)
        bound_all(self, "trace.", "skip", "most", most=MOST_ROWS)

    def expected(self, duration_s: float) -> float:
        """About how many requests come in so many seconds if it is played again and again; else 0, for there are no
        more than the file has. Raises `ConfigError` as `rows`, and for a trace that cannot be repeated."""
        if not self.repeat:
            return 0.0
        rows, length_s = self._lap()
        if length_s <= 0.0:
            raise ConfigError(
                f"trace {self.path} cannot be repeated: all its requests come at one moment", param="trace.repeat"
            )
        return len(rows) * duration_s * self.speed / length_s

    def span_s(self, num_requests: int) -> float:
        """How long so many take to come, or all there are. Raises as `expected`."""
        rows, length_s = self._lap()
        laps, more = divmod(num_requests, len(rows)) if self.repeat else (0, min(num_requests, len(rows)))
        return (laps * length_s + (rows[more - 1].at_s if more else 0.0)) / self.speed

    def rows(self) -> Iterator[TraceRow]:
        """In order of time, with the time scaled. Raises `ConfigError` naming file, line and column."""
        rows, length_s = self._lap()
        lap = 0
        while True:
            for row in rows:
                yield msgspec.structs.replace(row, at_s=(lap * length_s + row.at_s) / self.speed)
            if not self.repeat or length_s <= 0.0:
                return
            lap += 1

    def _lap(self) -> tuple[list[TraceRow], float]:
        """Its requests, and after how many seconds of its own time the first one comes again."""
        rows = self._part(read_trace(Path(self.path)))
        return rows, rows[-1].at_s * (1.0 + 1.0 / max(1, len(rows) - 1))

    def _part(self, rows: list[TraceRow]) -> list[TraceRow]:
        """What `skip` and `most` leave, from time zero on."""
        if not self.skip and not self.most:
            return rows
        part = rows[self.skip : self.skip + self.most if self.most else None]
        if not part:
            raise ConfigError(f"trace {self.path} has only {len(rows)} requests", param="trace.skip")
        return [msgspec.structs.replace(row, at_s=row.at_s - part[0].at_s) for row in part]


def read_trace(path: Path) -> list[TraceRow]:
    """All requests of a file, in order of time. The last few files are kept, so that a grid reads each once. Raises
    `ConfigError`."""
    try:
        state = path.stat()
    except (OSError, ValueError) as error:  # no path has a null character
        raise ConfigError(f"trace {path!s:.200}: {getattr(error, 'strerror', error)}", param="trace.path") from error
    if not S_ISREG(state.st_mode):
        raise ConfigError(f"trace {path} is not a file", param="trace.path")
    return list(_read(path, state.st_mtime_ns, state.st_size))


@lru_cache(maxsize=4)
def _read(path: Path, mtime_ns: int, size: int) -> tuple[TraceRow, ...]:
    """A file as it was then."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:  # some programs put a mark before the first line
            rows = list(_mooncake(path, file) if path.suffix.lower() == ".jsonl" else _azure(path, file))
    except OSError as error:
        raise ConfigError(f"trace {path}: {error.strerror}", param="trace.path") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise ConfigError(f"trace {path} cannot be read: {error}", param="trace.path") from error
    if not rows:
        raise ConfigError(f"trace {path} holds no request", param="trace.path")
    rows.sort(key=lambda row: row.at_s)
    begin_s = rows[0].at_s
    return tuple(msgspec.structs.replace(row, at_s=row.at_s - begin_s) if begin_s else row for row in rows)


def _azure(path: Path, file: Iterable[str]) -> Iterator[TraceRow]:
    reader = csv.DictReader(file, restkey=_BEYOND)
    there = list(reader.fieldnames or ())
    for name in AZURE_COLUMNS:
        if there.count(name) != 1:
            told = "has no column" if name not in there else "has more than one column"
            raise ConfigError(f"trace {path}, line 1 {told} {name}", param="trace.path")
    first: datetime | None = None
    for row in reader:
        cells = _Cells(path, reader.line_num, row)
        if _BEYOND in row:
            raise ConfigError(f"trace {path}, line {reader.line_num} has more cells than line 1", param="trace.path")
        first = first or cells.read("TIMESTAMP", _moment)
        at_s = cells.read("TIMESTAMP", partial(_seconds_since, first))
        yield TraceRow(at_s, cells.read("ContextTokens", _tokens), cells.read("GeneratedTokens", _tokens))


def _mooncake(path: Path, file: Iterable[str]) -> Iterator[TraceRow]:
    first: float | None = None
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"trace {path}, line {number}: {error}", param="trace.path") from error
        if not isinstance(row, dict):
            raise ConfigError(f"trace {path}, line {number}: not an object", param="trace.path")
        cells = _Cells(path, number, row)
        at_s = cells.read("timestamp", _milliseconds)
        first = at_s if first is None else first
        prompt_tokens, output_tokens = cells.read("input_length", _tokens), cells.read("output_length", _tokens)
        hash_ids = cells.read("hash_ids", partial(_pieces, prompt_tokens)) if "hash_ids" in row else ()
        yield TraceRow(at_s - first, prompt_tokens, output_tokens, hash_ids)


class _Cells:
    """The cells of one line, by column."""

    __slots__ = ("_cells", "_where")

    def __init__(self, path: Path, number: int, cells: Mapping[str, Any]) -> None:
        self._where, self._cells = f"trace {path}, line {number}", cells

    def read(self, column: str, of: Callable[[Any], _T]) -> _T:
        """What a cell holds. Raises `ConfigError`, naming file, line and column."""
        told = self._cells.get(column)
        if told is None:
            raise ConfigError(f"{self._where} has no {column}", param="trace.path")
        try:
            return of(told)
        except (ValueError, TypeError, OverflowError) as error:
            raise ConfigError(f"{self._where}, column {column}: {error!s:.200}", param="trace.path") from error


def _moment(told: str) -> datetime:
    """Six digits of a second, of which the files have more. Raises `ValueError`."""
    return datetime.fromisoformat(told[:26])


def _seconds_since(first: datetime, told: str) -> float:
    """Raises `ValueError`, `TypeError` where one has a zone and the other none."""
    return (_moment(told) - first).total_seconds()


def _milliseconds(told: Any) -> float:
    """Seconds. Raises `ValueError` for what cannot be."""
    at_s = float(told) / 1e3
    if not math.isfinite(at_s):
        raise ValueError("the time of arrival is not a number")
    return at_s


def _pieces(prompt_tokens: int, told: Any) -> tuple[int, ...]:
    """Names of a prompt's first pieces. Raises `ValueError` for what cannot be, such as pieces of another size."""
    if not isinstance(told, list):
        raise ValueError("not a list")
    most = -(-prompt_tokens // MOONCAKE_BLOCK)
    if len(told) > most:
        raise ValueError(f"{len(told)} pieces, but {prompt_tokens} tokens have {most} of {MOONCAKE_BLOCK} tokens")
    return tuple(map(_whole, told))


def _whole(told: Any) -> int:
    """Raises `ValueError`, `TypeError` for what is no whole number."""
    number = int(told)
    if isinstance(told, bool) or (isinstance(told, float) and number != told):
        raise ValueError(f"{told} is not a whole number")
    return number


def _tokens(told: Any) -> int:
    """A length; an empty prompt or answer counts as one token. Raises `ValueError` for what cannot be."""
    tokens = _whole(told)
    if tokens < 0:
        raise ValueError("the number of tokens is negative")
    if tokens > MOST_TOKENS:
        raise ValueError(f"more than {MOST_TOKENS} tokens")
    return max(1, tokens)
