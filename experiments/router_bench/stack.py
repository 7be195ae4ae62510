"""Replica, tap and router as processes, started in order and ended whatever happens."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from contracts.phase import Role
from contracts.views import StepCost
from experiments.router_bench.tap import READY_MARK as TAP_READY_MARK
from replica.config import FakeConfig, ReplicaConfig
from replica.process import READY_MARK as REPLICA_READY_MARK
from scheduling.config import ReplicaCoreConfig

READY_S = 120.0
END_S = 10.0


@dataclass(frozen=True, slots=True)
class Setup:
    """One bench: streams at a time, the step time of the fake engine in seconds, and the router's model."""

    streams: int
    step_s: float
    model: str
    role: Role


@dataclass(frozen=True, slots=True)
class Stack:
    """What runs: where to ask, and the router's process."""

    url: str
    router_pid: int


@contextlib.contextmanager
def running_replica(setup: Setup, logs: Path, replica_id: str = "bench") -> Iterator[str]:
    """A replica with the fake engine, whose steps all take `step_s`. Yields its control endpoint."""
    cost = StepCost(a0=setup.step_s, a1=1e-7, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    config = ReplicaConfig(
        replica_id=replica_id,
        role=setup.role,
        kind="fake",
        fake=FakeConfig(cost=cost),
        core=ReplicaCoreConfig(max_running=2 * setup.streams),
        parent_pid=os.getpid(),
    )
    argv = ["-m", "replica", msgspec.json.encode(config).decode()]
    with process_of(argv, logs / f"{replica_id}.log") as process:
        yield announced(process, REPLICA_READY_MARK, "the replica")


@contextlib.contextmanager
def running_tap(endpoint: str, notes: Path) -> Iterator[str]:
    """A tap before `endpoint`. Yields the endpoint for the router; `notes` exists after the `with`."""
    argv = ["-m", "experiments.router_bench.tap", endpoint, str(notes)]
    with process_of(argv, notes.with_suffix(".log")) as process:
        yield announced(process, TAP_READY_MARK, "the tap")


@contextlib.contextmanager
def running_router(
    setup: Setup, endpoints: list[str], port: int, logs: Path, shard: int = 0, shards: int = 1
) -> Iterator[Stack]:
    """A router over these replicas (its share of them, when it is one of several `shards`), once it is ready."""
    argv = ["-m", "cli", "router", "--model", setup.model, "--port", str(port)]
    argv += ["--set", f"router.shard={shard}", "--set", f"router.shards={shards}"]
    argv += [word for endpoint in endpoints for word in ("--replica", endpoint)]
    url = f"http://127.0.0.1:{port}"
    log = logs / f"router{shard}.log"
    with process_of(argv, log) as process:
        deadline = time.monotonic() + READY_S
        # one of several routers on a port cannot be asked by itself: its log says when it has its replica
        while not (answers(f"{url}/health/ready") and (shards == 1 or " joined (" in log.read_text())):
            if process.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the router did not become ready, see {log}")
            time.sleep(0.1)
        yield Stack(url, process.pid)


@contextlib.contextmanager
def process_of(argv: list[str], log: Path, python: str | None = None) -> Iterator[subprocess.Popen[str]]:
    """An interpreter with these arguments for the time of a `with`. `log` gets its stderr, and its stdout too when it
    is another `python` than ours: nobody would read that, and a full pipe stops whoever writes."""
    with log.open("w") as errors:
        process = subprocess.Popen(
            [python or sys.executable, *argv],
            stdout=errors if python else subprocess.PIPE,
            stderr=errors,
            stdin=subprocess.DEVNULL,
            text=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def announced(process: subprocess.Popen[str], mark: str, what: str) -> str:
    """What the process says after its ready mark. The end of its output ends the wait."""
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(mark):
            return line[len(mark) :].strip()
    raise SystemExit(f"{what} ended before it was ready")


def answers(url: str) -> bool:
    """Whether a GET is answered with 200 now."""
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False
