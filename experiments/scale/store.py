"""What was measured, one line of JSON each: a run that was stopped goes on where it was, parts can be run one by one.

A measurement is known by what ran, its case, and the version of the code when the command began: code that changed is
measured anew, and a table never mixes versions. It also names the commit when it was made: where the checkout moved on
while a command ran, that is a later one.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from experiments.load.origin import commit
from experiments.scale.one import Case, Measured
from simulator.grid.case import code_version


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One measurement to be made: `who` runs `case`; `number` tells repetitions apart."""

    who: str
    case: Case
    number: int = 0


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """A job, what it gave, and of which code, when and at which load of the machine it was."""

    job: Job
    measured: Measured
    code: str
    commit: str
    on: str
    load: float | None = None


class Store:
    """`version`: show rows of that version only. Raises `ConfigError` for a line that is not a measurement."""

    def __init__(self, path: Path, version: str = "") -> None:
        self._path, self._version = path, version
        self._code = code_version()
        path.parent.mkdir(parents=True, exist_ok=True)
        self.rows: list[Kept] = list(self._read())
        if version and all(not self._is_of(row, version) for row in self.rows):
            known = ", ".join(sorted({f"{row.code} (commit {row.commit})" for row in self.rows})) or "nothing"
            raise ConfigError(f"{path} has no row of version {version}: it holds {known}", param="version")

    def measure(self, job: Job, run: Callable[[], Measured]) -> None:
        """Unless it is there already, of this code."""
        if any(row.job == job and row.code == self._code for row in self.rows):
            return
        load, now = os.getloadavg()[0], f"{datetime.now(UTC):%Y-%m-%d %H:%M}"
        row = Kept(job=job, measured=run(), code=self._code, commit=commit(), on=now, load=load)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(row) + b"\n")
        self.rows.append(row)

    def shown(self, kind: str) -> list[Kept]:
        """Measurements of one kind of case: those of the version asked for, else of this code if it has any, else of
        the version that was measured last."""
        rows = [row for row in self.rows if row.job.case.kind == kind]
        if self._version:
            return [row for row in rows if self._is_of(row, self._version)]
        version = self._code if any(row.code == self._code for row in rows) else _last(rows)
        return [row for row in rows if row.code == version]

    def _read(self) -> Sequence[Kept]:
        """A last line that was torn by a kill is cut off."""
        content = self._path.read_bytes() if self._path.is_file() else b""
        whole = content[: content.rfind(b"\n") + 1]
        if len(whole) < len(content):
            os.truncate(self._path, len(whole))
        rows = []
        for number, line in enumerate(whole.splitlines(), 1):
            try:
                rows.append(msgspec.json.decode(line, type=Kept))
            except msgspec.DecodeError as error:
                raise ConfigError(f"{self._path}, line {number}: {error}", param="store") from error
        return rows

    @staticmethod
    def _is_of(row: Kept, version: str) -> bool:
        return version in {row.code, row.commit, row.commit.removesuffix("+")}


def origin_of(rows: Sequence[Kept]) -> str:
    """The commits and days of measurements."""
    commits, days = dict.fromkeys(row.commit for row in rows), dict.fromkeys(row.on[:10] for row in rows)
    return f"{', '.join(commits)} (measured {', '.join(days)})"


def _last(rows: Sequence[Kept]) -> str:
    return rows[-1].code if rows else ""
