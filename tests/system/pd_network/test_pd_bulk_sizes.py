"""Every transport between two processes: any size, closed at once, closed in the middle, connected again and again.

NET-1, NET-3, NET-10 and NET-12 of the field bugs.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import mmap
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kvtransfer.config import TransferConfig
from kvtransfer.protocol import TransferError
from kvtransfer.transports import all_transports

pytestmark = [pytest.mark.system]

TOKEN = bytes(range(32))
SLOT = bytes(range(16))
PEER = Path(__file__).with_name("bulk_peer.py")
CONFIG = TransferConfig(host="127.0.0.1")
ONLY = os.environ.get("TRANSPORT_SCHEME", "")
"""`ucx` has all this run in a process of its own, since two copies of UCX in one end in a crash."""
SCHEMES = (ONLY,) if ONLY else ("tcp", "cma", "nixl")
MIB = 1 << 20
GIB = 1 << 30
EDGES = (1, 8191, 8192, 8193, 65535, 65536, 65537, MIB - 1, MIB, MIB + 1)


def transport_of(scheme: str) -> Any:
    transport = all_transports(CONFIG)[scheme]
    reason = transport.unavailable()
    if reason is not None:
        pytest.skip(f"{scheme}: {reason}")
    return transport


def memory_of(num_bytes: int) -> memoryview:
    """Zeros but for a mark in each MiB, so that little of it takes room."""
    memory = memoryview(mmap.mmap(-1, max(num_bytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS))
    for offset in range(0, num_bytes, MIB):
        mark = hashlib.sha256(offset.to_bytes(8, "big")).digest()[: num_bytes - offset]
        memory[offset : offset + len(mark)] = mark
    return memory[:num_bytes]


@contextlib.asynccontextmanager
async def peer(scheme: str, num_bytes: int) -> AsyncIterator[tuple[str, asyncio.StreamReader]]:
    """Its endpoint, and what it says next."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, str(PEER), scheme, str(num_bytes),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        async with asyncio.timeout(60.0):
            endpoint = (await process.stdout.readline()).decode().strip()
        assert endpoint
        yield endpoint, process.stdout
        assert process.returncode is None, "the receiver died"
    finally:
        process.stdin.close()
        try:
            async with asyncio.timeout(20.0):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()


async def said(output: asyncio.StreamReader, deadline_s: float) -> str:
    async with asyncio.timeout(deadline_s):
        return (await output.readline()).decode().strip()


async def sent_whole(scheme: str, num_bytes: int, deadline_s: float) -> None:
    transport, source = transport_of(scheme), memory_of(num_bytes)
    want = hashlib.sha256(source).hexdigest()
    async with peer(scheme, num_bytes) as (endpoint, output):
        sender = await transport.connect(endpoint, TOKEN, source, 30.0)
        async with asyncio.timeout(deadline_s):
            await sender.put(SLOT, 0, [source], b"last")
            await sender.close()  # at once: what was put arrives all the same
        assert await said(output, deadline_s) == want


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_bytes", EDGES)
async def test_sizes_around_every_edge(scheme: str, num_bytes: int) -> None:
    """NET-10."""
    await sent_whole(scheme, num_bytes, 20.0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("num_bytes", [2 * GIB - 1, 2 * GIB, 4 * GIB + 1])
async def test_sizes_that_do_not_fit_an_int(scheme: str, num_bytes: int) -> None:
    """NET-10."""
    await sent_whole(scheme, num_bytes, 80.0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_closed_right_after_a_gib(scheme: str) -> None:
    """NET-1, three times."""
    for _ in range(3):
        await sent_whole(scheme, GIB, 50.0)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_closed_in_the_middle(scheme: str) -> None:
    """NET-3: what is under way ends with an error, what follows too; then a new connection works."""
    transport, source = transport_of(scheme), memory_of(256 * MIB)
    async with peer(scheme, len(source)) as (endpoint, output):
        sender = await transport.connect(endpoint, TOKEN, source, 30.0)
        put = asyncio.create_task(sender.put(SLOT, 0, [source], b"cut"))
        await asyncio.sleep(0.01)
        put.cancel()
        began_s = time.monotonic()
        with contextlib.suppress(asyncio.CancelledError, TransferError):
            await put
        await sender.close()
        assert time.monotonic() - began_s < 10.0
        with pytest.raises(TransferError):
            await sender.put(SLOT, 0, [source[:MIB]], b"after")
        again = await transport.connect(endpoint, TOKEN, source, 30.0)
        await again.put(SLOT, 0, [source], b"last")
        assert await said(output, 30.0) == hashlib.sha256(source).hexdigest()
        await again.close()


@pytest.mark.slow
@pytest.mark.timeout(170)
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_connected_again_and_again(scheme: str) -> None:
    """NET-12: 400 connections in a row, each carries a MiB."""
    transport, source = transport_of(scheme), memory_of(MIB)
    want = hashlib.sha256(source).hexdigest()
    async with peer(scheme, MIB) as (endpoint, output):
        for _ in range(400):
            sender = await transport.connect(endpoint, TOKEN, source, 10.0)
            await sender.put(SLOT, 0, [source], b"last")
            await sender.close()
            assert await said(output, 10.0) == want


@pytest.mark.parametrize("scheme", ["tcp", "cma"])
async def test_a_few_sizes_quickly(scheme: str) -> None:
    await sent_whole(scheme, MIB + 1, 20.0)


@pytest.mark.slow
@pytest.mark.skipif(bool(ONLY), reason="this is that process")
@pytest.mark.timeout(900)
def test_ucx_in_a_process_of_its_own() -> None:
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", str(Path(__file__)), "-k", "not quickly"]
    done = subprocess.run(
        argv, env={**os.environ, "TRANSPORT_SCHEME": "ucx"}, capture_output=True, text=True, timeout=880, check=False
    )
    assert done.returncode == 0, done.stdout[-4000:]
