"""Files that appear with all of their content or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from contracts.errors import ConfigError


def write_whole(path: Path, content: bytes, param: str = "out") -> None:
    """Raises `ConfigError`, naming the setting `param`, when it cannot be written; then there is no part of it."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # the folder may be closed to us, or gone
            partial.unlink(missing_ok=True)
        raise ConfigError(f"{path}: {error.strerror}", param=param) from error
