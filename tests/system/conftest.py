"""Real replica processes over loopback, started and ended by process id."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import IO, Any

import pytest

READY_MARK = "PHASESERVE_READY "
QUICK_COST = {"a0": 0.001, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 1e-5}


class ReplicaProcess:
    """One `python -m replica`. Its log is in `log_path`."""

    def __init__(self, config: dict[str, Any], log_path: Path) -> None:
        self.log_path = log_path
        self.endpoint = ""
        with log_path.open("w") as log:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "replica", json.dumps(config)], stdout=subprocess.PIPE, stderr=log, text=True
            )
        self.pid = self._popen.pid

    @property
    def stdout(self) -> IO[str]:
        assert self._popen.stdout is not None
        return self._popen.stdout

    @property
    def log(self) -> str:
        return self.log_path.read_text()

    @property
    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))  # noqa: PTH208

    @property
    def threads(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/task"))  # noqa: PTH208

    async def wait_ready(self, deadline_s: float = 60.0) -> None:
        line = await asyncio.wait_for(asyncio.to_thread(self.stdout.readline), deadline_s)
        assert line.startswith(READY_MARK), f"not ready: {line!r}\n{self.log}"
        self.endpoint = line.removeprefix(READY_MARK).strip()

    def signal(self, number: signal.Signals) -> None:
        self._popen.send_signal(number)

    async def wait_exit(self, deadline_s: float = 20.0) -> int:
        """The exit code."""
        return await asyncio.to_thread(self._popen.wait, deadline_s)

    def end(self) -> None:
        if self._popen.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                self.signal(signal.SIGCONT)
            self._popen.kill()
        self._popen.wait(10)
        self.stdout.close()


StartReplica = Callable[..., Awaitable[ReplicaProcess]]


@pytest.fixture
async def start_replica(tmp_path: Path) -> AsyncIterator[StartReplica]:
    """`await start_replica(role=..., ...)`: a replica with a quick fake engine; settings as in `ReplicaConfig`.

    `ready=False` does not wait for it.
    """
    started: list[ReplicaProcess] = []

    async def start(*, ready: bool = True, **settings: Any) -> ReplicaProcess:
        name = f"r{len(started)}"
        config = {"replica_id": name, "kind": "fake", "role": "mixed", "fake": {"cost": QUICK_COST}, **settings}
        process = ReplicaProcess(config, tmp_path / f"{name}.log")
        started.append(process)
        if ready:
            await process.wait_ready()
        return process

    yield start
    for process in started:
        process.end()
