"""What is looked at from outside: whether a replica is idle, and what a process holds open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.network.fleet import Member

BUSY = ("running", "waiting", "receiving", "sending")


def is_idle(view: Mapping[str, Any]) -> bool:
    return not any(view[name] for name in BUSY) and bool(view["free_blocks"] == view["num_blocks"])


def usage(member: Member) -> tuple[int, int]:
    """Open file descriptors and threads."""
    folder = Path(f"/proc/{member.process.pid}")
    return len(list((folder / "fd").iterdir())), len(list((folder / "task").iterdir()))


def opened(member: Member) -> list[str]:
    with contextlib.suppress(OSError):
        return sorted(os.readlink(path) for path in Path(f"/proc/{member.process.pid}/fd").iterdir())  # noqa: PTH115
    return []
