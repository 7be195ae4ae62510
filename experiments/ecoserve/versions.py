"""Of which version of the code stored rows are: the digest in their keys, and the commit that has that digest."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path, PurePosixPath

import msgspec

from contracts.errors import ConfigError
from simulator.grid import Row
from simulator.grid.case import DECIDES, code_version, decides

ROOT = Path(__file__).resolve().parents[2]
FAR = 400
"""Commits that are looked through, the latest first."""


def stored(path: Path) -> dict[str, Row]:
    """By key, those without an error; a torn last line is left out. Raises `ConfigError` for one that is not a row."""
    content = path.read_bytes() if path.is_file() else b""
    rows: dict[str, Row] = {}
    for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
        if not line.startswith(b'{"key"'):
            continue
        try:
            row = msgspec.json.decode(line, type=Row)
        except msgspec.DecodeError as error:
            raise ConfigError(f"{path}, line {number}: {error}", param="store") from error
        if not row.error:
            rows[row.key] = row
    return rows


def chosen(path: Path, asked: str = "") -> str:
    """The version whose rows are to be shown: the one asked for (its digest, or a commit), else the only one there is,
    else that of the code at hand. Raises `ConfigError` when the store has none of it, or several others."""
    there = sorted({key.rpartition("-")[2] for key in stored(path)})
    if not there:
        raise ConfigError(f"{path} holds no row: there is nothing to show", param="store")
    known = ", ".join(there)
    if asked:
        found = [one for one in there if one.startswith(asked)] or [one for one in there if one == _of_commit(asked)]
        if len(found) != 1:
            raise ConfigError(f"{path} has no row of version {asked}: it holds {known}", param="version")
        return found[0]
    if len(there) == 1:
        return there[0]
    if code_version() in there:
        return code_version()
    raise ConfigError(f"{path} holds {known}: say which with --version", param="version")


def commit_of(version: str) -> str:
    """The latest commit that made that version, short; "" when none of the last ones did."""
    for commit in _git("rev-list", f"--max-count={FAR}", "HEAD", "--", *DECIDES).decode().split():
        if _of_commit(commit) == version:
            return commit[:7]
    return ""


def _of_commit(commit: str) -> str:
    """As `simulator.grid.case.code_version`, of a commit; "" for none."""
    archive = _git("archive", "--format=tar", commit, "--", *DECIDES)
    if not archive:
        return ""
    digest = hashlib.sha256()
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        members = {PurePosixPath(one.name): one for one in files.getmembers() if one.isfile()}
        for room in DECIDES:
            for name in sorted(one for one in members if one.parts[0] == room and decides(one)):
                file = files.extractfile(members[name])
                assert file is not None
                digest.update(str(name).encode() + file.read())
    return digest.hexdigest()[:12]


def _git(*words: str) -> bytes:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, check=False).stdout
