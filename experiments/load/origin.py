"""Where a result comes from: command, date, commit, machine and versions, for the head of a result file."""

from __future__ import annotations

import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from experiments.load.machine import describe_machine

_PACKAGES = ("msgspec", "matplotlib")
_ROOT = Path(__file__).parents[2]


def origin(command: str) -> str:
    """A few lines of Markdown. The commit is that of the checkout; `+` when its tracked files were changed."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    commit = _commit()
    beyond = " (`+`: and changes that were not in it yet)" if commit.endswith("+") else ""
    return (
        f"Command: `{command}`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Commit: {commit}{beyond}.\n"
        f"Machine: {describe_machine()}; {versions}."
    )


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    name = _git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{name}+" if _git("status", "--porcelain", "--untracked-files=no") else name


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
