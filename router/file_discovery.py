"""Replicas by a file that somebody else keeps: one control endpoint a line, `#` begins a comment. Watched.

Looked at once a second, contents and all: it may be a mount that is replaced as a whole (a ConfigMap), on which
nothing tells of changes. A file that is missing or wrong changes nothing: the last list is kept, and it is said why.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from pathlib import Path

from contracts.cluster_io import ProposeReplicas
from contracts.discovery import FleetSide
from contracts.errors import ConfigError
from router.config import check_endpoints

log = logging.getLogger("phaseserve.router")

EVERY_S = 1.0
MAX_BYTES = 1 << 20


def read_endpoints(path: Path) -> tuple[str, ...]:
    """The endpoints in a file, in its order. Raises `ConfigError` naming what is wrong. An empty list is a list."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        lines = raw.decode().splitlines()
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", param="replicas_file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no text", param="replicas_file") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{path} is larger than {MAX_BYTES} bytes", param="replicas_file")
    endpoints = tuple(filter(None, (line.partition("#")[0].strip() for line in lines)))
    check_endpoints(endpoints, f"{path}: ")
    return endpoints


class FileDiscovery:
    """A `contracts.discovery.Discovery`."""

    def __init__(self, path: Path, every_s: float = EVERY_S) -> None:
        self._path, self._every_s = path, every_s
        self._last: tuple[str, ...] | None = None
        self._trouble: str | None = None
        self._changes = self._errors = 0

    async def run(self, fleet: FleetSide) -> None:
        """Until cancelled."""
        while True:
            try:
                endpoints = await asyncio.to_thread(read_endpoints, self._path)
            except ConfigError as error:
                self._errors += 1
                if error.message != self._trouble:
                    self._trouble = error.message
                    kept = "none is known yet" if self._last is None else f"the last {len(self._last)} are kept"
                    log.warning("replicas: %s; %s", error.message, kept)
            else:
                self._trouble = None
                if endpoints != self._last:
                    self._last = endpoints
                    self._changes += 1
                    log.info("%s names %d replicas", self._path, len(endpoints))
                    fleet.found(endpoints)
            await asyncio.sleep(self._every_s)

    def proposed(self, proposal: ProposeReplicas) -> None:
        """Nobody here starts or stops replicas."""

    def trouble(self) -> str | None:
        """What is wrong with the file."""
        return self._trouble

    def figures(self) -> Mapping[str, float]:
        """How often it changed and could not be read."""
        known = 0 if self._last is None else len(self._last)
        return {"endpoints": known, "changes_total": self._changes, "errors_total": self._errors}
