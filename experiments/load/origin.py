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
    """A few lines of Markdown."""
    versions = ", ".join(f"{name} {_version(name)}" for name in _PACKAGES)
    at = commit()
    beyond = " (`+`: and changes that were not in it yet)" if at.endswith("+") else ""
    return (
        f"Command: `{command}`. Date: {datetime.now(UTC):%Y-%m-%d %H:%M} UTC. Commit: {at}{beyond}.\n"
        f"Machine: {describe_machine()}; {versions}."
    )


def commit() -> str:
    """Of the checkout that this file is in, short; `+` behind it when tracked files were changed since."""
    name = _git("rev-parse", "--short", "HEAD") or "unknown"
    return f"{name}+" if _git("status", "--porcelain", "--untracked-files=no") else name


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _git(*words: str) -> str:
    try:
        done = subprocess.run(["git", *words], cwd=_ROOT, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
