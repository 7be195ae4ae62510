"""Requests that offer another protocol are plain requests to this server, however their bytes arrive."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

OFFERS = [
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n",
    b"upgrade: h2c\r\nconnection: keep-alive, upgrade\r\n",
    b"connection: upgrade\r\nupgrade: websocket\r\nsec-websocket-key: x\r\nsec-websocket-version: 13\r\n",
]


def request(offer: bytes, body: bytes, chunked: bool = False) -> bytes:
    framing = b"transfer-encoding: chunked" if chunked else b"content-length: %d" % len(body)
    sent = b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body) if chunked else body
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n" + offer + framing + b"\r\n\r\n" + sent


async def exchange(router: Any, raw: bytes, count: int, piece: int | None = None) -> list[tuple[int, dict[str, Any]]]:
    """Status and body of `count` answers on one connection; `raw` is sent in pieces of so many bytes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(router.url.rsplit(":", 1)[1]))
    for start in range(0, len(raw), piece or len(raw)):
        writer.write(raw[start : start + (piece or len(raw))])
        await asyncio.sleep(0)
    answers = []
    async with asyncio.timeout(10):
        for _ in range(count):
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
            answers.append((int(head.split()[1]), json.loads(await reader.readexactly(length))))
    writer.close()
    return answers


@pytest.mark.parametrize("piece", [None, 1, 50])
@pytest.mark.parametrize("chunked", [False, True])
@pytest.mark.parametrize("offer", OFFERS)
async def test_a_request_that_offers_an_upgrade_keeps_its_body(
    router: Any, replica: Any, chat: Any, offer: bytes, chunked: bool, piece: int | None
) -> None:
    raw = request(offer, json.dumps(chat()).encode(), chunked)
    ((status, answer),) = await exchange(router, raw, 1, piece)
    assert status == 200, answer
    assert len(replica.submits) == 1


async def test_many_offers_in_one_packet(router: Any, replica: Any, chat: Any) -> None:
    raw = request(OFFERS[0], json.dumps(chat(max_tokens=1)).encode())
    plain = request(b"", json.dumps(chat(max_tokens=1)).encode())
    answers = await exchange(router, (raw + plain) * 4, 8)
    assert [status for status, _ in answers] == [200] * 8
    assert len(replica.submits) == 8


async def test_offers_without_a_body_and_to_nowhere(router: Any, chat: Any) -> None:
    raw = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n" + OFFERS[0] + b"\r\n"
    ((status, answer),) = await exchange(router, raw, 1)
    assert (status, answer["data"][0]["id"]) == (200, "tiny")
    ((status, _),) = await exchange(router, raw.replace(b"/v1/models", b"/nothing"), 1)
    assert status == 404


@pytest.mark.parametrize(
    "raw", [b"CONNECT x:1 HTTP/1.1\r\nhost: x\r\n\r\nabc", b"nonsense\r\n\r\n", b"\x16\x03\x01\x02\x00"]
)
async def test_what_is_no_request_is_a_400(router: Any, chat: Any, raw: bytes) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(router.url.rsplit(":", 1)[1]))
    writer.write(raw)
    async with asyncio.timeout(10):
        assert (await reader.read()).startswith(b"HTTP/1.1 400 ")
    writer.close()
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200
