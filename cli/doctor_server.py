"""A server of the doctor's own: a port for it, and the wait until it is ready."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time

from cli.http_client import ServerError, get_json
from cli.supervisor import Child

READY_S = 300.0


def free_port() -> int:
    """A port nobody listens on, below the range from which the system gives ports to connections."""
    for port in random.SystemRandom().sample(range(10_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise ServerError("no free port between 10000 and 32000")


async def wait_ready(child: Child, url: str) -> bool:
    """False when it ended, or was not ready in time."""
    deadline = time.monotonic() + READY_S
    while time.monotonic() < deadline and child.process.returncode is None:
        try:
            await asyncio.to_thread(get_json, url, "/health/ready")
        except ServerError:
            await asyncio.sleep(0.2)
        else:
            return True
    return False
