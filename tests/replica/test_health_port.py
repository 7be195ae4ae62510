"""The port for probes under those that only take up room: a probe that is not answered ends a healthy replica."""

from __future__ import annotations

import asyncio

import pytest

from replica import health
from replica.health import MAX_CONNECTIONS, Health, health_server

PROBE = b"GET /health/live HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
NONSENSE = (b"", b"GET /hea", b"GET / HTTP/1.1\r\nA: b\r\n", b"\x16\x03\x01\x02\x00\x01", b"\0" * 5000, b"\r\n" * 50)


async def answer(port: int, said: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    async with asyncio.timeout(5):
        told = await reader.read()
    writer.close()
    return told


async def is_over(reader: asyncio.StreamReader) -> bool:
    async with asyncio.timeout(5):
        try:
            return await reader.read() == b""
        except ConnectionResetError:
            return True


async def test_a_probe_is_answered_however_many_others_take_up_room() -> None:
    async with health_server(Health(), "127.0.0.1", 0) as port:
        assert port is not None
        others = []
        for number in range(3 * MAX_CONNECTIONS):
            others.append(await asyncio.open_connection("127.0.0.1", port))
            others[-1][1].write(NONSENSE[number % len(NONSENSE)])
            if number % MAX_CONNECTIONS == 0:
                assert b" 200 " in await answer(port, PROBE)
        assert b" 200 " in await answer(port, PROBE)
        assert await is_over(others[0][0]), "the oldest is turned out"
        for _, writer in others:
            writer.close()


async def test_who_says_nothing_is_turned_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "CONNECTION_S", 0.1)
    async with health_server(Health(), "127.0.0.1", 0) as port:
        assert port is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /health/live HTTP/1.1\r\n")
        assert await is_over(reader)
        writer.close()
