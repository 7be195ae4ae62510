"""`require = rdma` on a host without RDMA: each transport refuses to start. In a process of its own: UCX's settings are
read once per process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kvtransfer.config import TransferConfig
from kvtransfer.gid import choose_rdma
from kvtransfer.transports import all_transports

PROGRAM = """
import asyncio
from kvtransfer.config import TransferConfig
from kvtransfer.protocol import TransferError
from kvtransfer.transports import all_transports

async def main(scheme):
    transport = all_transports(TransferConfig(host="127.0.0.1", require="rdma"))[scheme]
    receiver = transport.receiver(memoryview(bytearray(4096)), lambda *_: None, lambda _: True)
    try:
        await receiver.start()
    except TransferError as error:
        print("REFUSED", error.message, flush=True)
    else:
        print("STARTED", receiver.endpoint)
        await receiver.close()

asyncio.run(main("SCHEME"))
"""


@pytest.mark.parametrize("scheme", ["ucx", "nixl"])
def test_it_refuses_to_start_on_tcp(scheme: str) -> None:
    if choose_rdma().port is not None:
        pytest.skip("this host has RDMA")
    if reason := all_transports(TransferConfig(host="127.0.0.1"))[scheme].unavailable():
        pytest.skip(reason)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.replace("SCHEME", scheme)],
        cwd=Path(__file__).parents[2],
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,  # NIXL 1.5.1 crashes when a process that has loaded its InfiniBand modules exits
    )
    verdict = [line for line in done.stdout.splitlines() if line.startswith(("REFUSED", "STARTED"))]
    assert len(verdict) == 1
    assert verdict[0].startswith("REFUSED"), verdict
