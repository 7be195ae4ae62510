"""Rows in a file, one JSON line each: whatever kills the run, what is there is whole and the run goes on from it."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from contracts.errors import ConfigError
from simulator.grid.case import Row

_T = TypeVar("_T")
_BEGIN = b'{"grid":'
"""Of every first line."""


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """The first line: of which grid and which code the rows are."""

    grid: str
    code: str


class Store:
    """One writer at a time. Each row is appended whole; a last line that was torn by a kill is dropped.

    Raises `ConfigError`: another process writes to it, its folder cannot be made, a line is not a row, or, unless
    `mixing`, it is of another grid or of other code.
    """

    def __init__(self, path: Path, header: Header, *, mixing: bool) -> None:
        self.path = path
        self.rows: dict[str, Row] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a+b", buffering=0)
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}", param="store") from error
        try:
            self._open(header, mixing=mixing)
        except BaseException:
            self._file.close()
            raise

    def add(self, row: Row) -> None:
        """Keep one more row. Raises `ConfigError` when the disk does not take it."""
        self.rows[row.key] = row
        self._append(msgspec.json.encode(row))

    def close(self) -> None:
        """Another process may write now."""
        self._file.close()

    def _open(self, header: Header, *, mixing: bool) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(f"{self.path}: another process is writing to it", param="store") from error
        self._file.seek(0)
        content = self._file.read()
        lines = content.splitlines(keepends=True)
        torn = lines.pop() if lines and not lines[-1].endswith(b"\n") else b""
        if not lines:
            if not torn.startswith(_BEGIN[: len(torn)]):
                raise ConfigError(f"{self.path} holds something else than rows", param="store")
            os.ftruncate(self._file.fileno(), 0)
            self._append(msgspec.json.encode(header))
            return
        found = self._decode(lines[0], 1, Header)
        if not mixing and found != header:
            other = "another version of the code" if found.code != header.code else "another grid"
            raise ConfigError(f"{self.path} holds rows of {other}: name another folder, or say --mix", param="store")
        for number, line in enumerate(lines[1:], 2):
            row = self._decode(line, number, Row)
            self.rows[row.key] = row
        os.ftruncate(self._file.fileno(), len(content) - len(torn))  # now that it is known to be ours

    def _decode(self, line: bytes, number: int, kind: type[_T]) -> _T:
        try:
            return msgspec.json.decode(line, type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise ConfigError(f"{self.path}, line {number}: {error}", param="store") from error

    def _append(self, line: bytes) -> None:
        try:
            left = memoryview(line + b"\n")
            while left:
                left = left[self._file.write(left) :]
        except OSError as error:
            raise ConfigError(f"{self.path}: {error.strerror}", param="store") from error
