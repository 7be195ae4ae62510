"""How many connections the same-host transport serves at once."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kvtransfer import cma_receiver
from kvtransfer.config import TransferConfig
from kvtransfer.transports import all_transports


async def test_connections_over_the_bound_are_shown_out(monkeypatch: pytest.MonkeyPatch) -> None:
    transport = all_transports(TransferConfig(host="127.0.0.1"))["cma"]
    if reason := transport.unavailable():
        pytest.skip(reason)
    monkeypatch.setattr(cma_receiver, "MAX_CONNECTIONS", 2)
    receiver = transport.receiver(memoryview(bytearray(4096)), lambda *_: None, lambda _: True)
    await receiver.start()
    path = "\0" + receiver.endpoint.rsplit("/", 1)[1]
    links = [await asyncio.open_unix_connection(path) for _ in range(5)]
    try:
        reads = [asyncio.create_task(reader.read(1)) for reader, _ in links]
        done, waiting = await asyncio.wait(reads, timeout=1.0)
        assert len(done) == 3
        assert {read.result() for read in done} == {b""}
        assert len(waiting) == 2
    finally:
        await receiver.close()
        for _, writer in links:
            writer.close()
        await asyncio.gather(*reads)


async def test_a_connection_that_was_closed_here_meanwhile_is_one_that_hung_up() -> None:
    """A replica that ends closes it while a put is being copied."""
    ours, theirs = socket.socketpair()
    _, writer = await asyncio.open_connection(sock=ours)
    assert not cma_receiver._hung_up(writer)
    writer.close()
    await writer.wait_closed()
    assert cma_receiver._hung_up(writer)
    theirs.close()
