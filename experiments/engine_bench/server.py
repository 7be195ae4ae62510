"""Starts one server, waits until it answers, and ends it: one at a time, so that nothing shares the cores."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from experiments.engine_bench.peers import Peer, environment


@dataclass(frozen=True, slots=True)
class Running:
    """A server that answers. `start_s` is from its start to its first healthy answer."""

    peer: Peer
    url: str
    pid: int
    start_s: float


class PeerFailedError(Exception):
    """The server ended or did not answer in time. The message names its log."""


def free_port() -> int:
    """A port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def served(peer: Peer, port: int, log: Path) -> Iterator[Running]:
    """The server for the time of a `with`. Its whole process group is ended after it."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(
            peer.argv, env=environment(peer), stdout=out, stderr=out, stdin=subprocess.DEVNULL, start_new_session=True
        )
        try:
            _wait_healthy(process, f"{url}{peer.health}", began + peer.ready_s, log)
            yield Running(peer, url, process.pid, time.monotonic() - began)
        finally:
            _end(process)


def _wait_healthy(process: subprocess.Popen[bytes], url: str, deadline: float, log: Path) -> None:
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise PeerFailedError(f"ended with code {process.returncode}, see {log}")
        with contextlib.suppress(urllib.error.URLError, OSError), urllib.request.urlopen(url, timeout=2) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)
    raise PeerFailedError(f"did not answer in time, see {log}")


def _end(process: subprocess.Popen[bytes]) -> None:
    """SIGTERM, then SIGKILL to the group: a peer that waits for open requests must not hold the benchmark."""
    process.send_signal(signal.SIGTERM)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(10)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
