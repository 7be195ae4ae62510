"""RESULT.md of an experiment, written anew after each line, so that an interrupted run leaves a truthful table."""

from __future__ import annotations

import datetime
import os
import platform
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from experiments.load.origin import commit

_FILES = frozenset({"--store", "--out", "--traces", "--vidur"})


class Document:
    """Sections in the order in which they were named. `rows_of`: the commit that stored rows are of, if they are shown
    and nothing is run."""

    def __init__(self, path: Path, title: str, command: str, rows_of: str = "") -> None:
        self._path = path
        self._head = [f"# {title}", "", f"`{command}`, {stamp(rows_of)}.", ""]
        self._sections: dict[str, list[str]] = {}
        self._heads: dict[str, tuple[str, ...]] = {}
        self._missing: dict[str, tuple[str, str]] = {}

    def plan(self, part: str, what: str, group: str = "") -> None:
        """This is to come: told as not run until it is there, with others of its group in one line."""
        self._missing[part] = (group, what)

    def done(self, part: str) -> None:
        """This has come whole."""
        self._missing.pop(part, None)
        self.write()

    def head(self, title: str, *lines: str) -> None:
        """What a section begins with, if it comes to have anything else."""
        self._heads[title] = lines

    def section(self, title: str, *lines: str) -> None:
        """Begin one, or go on with it; then write the file."""
        lines = (*self._heads.pop(title, ()), *lines)
        self._sections.setdefault(title, []).extend(lines)
        for line in lines:
            print(line, flush=True)
        self.write()

    def replace(self, title: str, *lines: str) -> None:
        """Write a section anew, as the last one."""
        self._sections.pop(title, None)
        self._sections[title] = list(lines)
        self.write()

    def beside(self, name: str) -> Path:
        """Where a file next to RESULT.md goes."""
        return self._path.with_name(name)

    def write(self) -> None:
        """The whole file, by renaming."""
        lines = list(self._head)
        for title, body in self._sections.items():
            lines += [f"## {title}", "", *body, ""]
        if self._missing:
            lines += ["## Not run", "", *self._not_run(), ""]
        fresh = self._path.with_suffix(".new")
        fresh.write_text("\n".join(lines))
        fresh.replace(self._path)

    def _not_run(self) -> Iterator[str]:
        groups: dict[str, dict[str, None]] = {}
        for group, what in self._missing.values():
            groups.setdefault(group or what, {})[what] = None
        for group, parts in groups.items():
            yield f"- {group}" if list(parts) == [group] else f"- {group}: {'; '.join(parts)}"


def command(module: str, words: Sequence[str]) -> str:
    """How to run it again, without the names of files."""
    kept = [
        word for before, word in pairwise(["", *words]) if before not in _FILES and word.split("=")[0] not in _FILES
    ]
    return " ".join(["python -m", module, *kept])


def stamp(rows_of: str = "") -> str:
    """Date, commit, machine and versions."""
    today = datetime.datetime.now(datetime.UTC).date()
    which = f"rows of commit {rows_of}, shown by {commit()}" if rows_of else f"commit {commit()}"
    return (
        f"{today}, {which}, {os.cpu_count()} cores {platform.machine()}, "
        f"Python {platform.python_version()}; virtual time, so that the machine decides only how long it takes"
    )
