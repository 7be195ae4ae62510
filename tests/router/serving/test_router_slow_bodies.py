"""Bodies that never come keep nobody out and are answered in time; what the headers tell is judged at once."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n"


async def connect(router: Any, raw: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(router.url.rsplit(":", 1)[1]))
    writer.write(raw)
    await writer.drain()
    return reader, writer


async def answer_to(router: Any, raw: bytes) -> tuple[int, dict[str, Any]]:
    """Status and error object; the connection need not end."""
    reader, writer = await connect(router, raw)
    async with asyncio.timeout(10):
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        error: dict[str, Any] = json.loads(await reader.readexactly(length))["error"]
    writer.close()
    return int(head.split()[1]), error


async def test_bodies_that_never_come_keep_nobody_out(start_router: Any, replica: Any, chat: Any) -> None:
    router = await start_router(replica, limits={"max_open": 4, "max_receiving": 8, "body_deadline_s": 20})
    slow = [await connect(router, POST + b"content-length: 100\r\n\r\n{") for _ in range(30)]
    for _ in range(3):
        assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200
    async with asyncio.timeout(10):  # the oldest made room
        assert (await slow[0][0].read()).startswith(b"HTTP/1.1 408 ")
    for _, writer in slow:
        writer.close()
    await router.wait_idle(replica)


@pytest.mark.parametrize(
    "raw",
    [
        b"content-length: 100\r\n\r\n{",
        b"content-length: 100\r\n\r\n",
        b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n",
    ],
)
async def test_a_body_that_does_not_come_is_a_408(start_router: Any, replica: Any, chat: Any, raw: bytes) -> None:
    router = await start_router(replica, limits={"body_deadline_s": 0.2})
    reader, writer = await connect(router, POST + raw)
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).partition(b"\r\n\r\n")  # to its end: the connection is closed
    writer.close()
    assert head.startswith(b"HTTP/1.1 408 ")
    assert json.loads(body)["error"]["code"] == "request_timeout"
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200


@pytest.mark.parametrize("expect", [b"", b"expect: 100-continue\r\n"])
async def test_an_announced_length_over_the_limit_is_refused_before_it_is_sent(router: Any, expect: bytes) -> None:
    status, error = await answer_to(router, POST + expect + b"content-length: 90000000\r\n\r\n")
    assert (status, error["code"]) == (413, "request_too_large")


async def test_a_body_may_wait_for_100_continue(router: Any, chat: Any) -> None:
    raw = json.dumps(chat()).encode()
    head = POST + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(raw)
    reader, writer = await connect(router, head)
    async with asyncio.timeout(10):
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(raw)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "x" * 5000])
async def test_compressed_bodies_are_refused_by_name(router: Any, error_ok: Any, chat: Any, encoding: str) -> None:
    answer = await router.http.post("/v1/chat/completions", json=chat(), headers={"content-encoding": encoding})
    assert encoding[:128] in await error_ok(router.http, answer, 415)
    assert len(answer.content) < 1024


async def test_identity_is_no_encoding(router: Any, chat: Any) -> None:
    answer = await router.http.post("/v1/chat/completions", json=chat(), headers={"content-encoding": "identity"})
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/v1/models", "/v1/models/tiny"])
async def test_head_is_get_without_a_body(router: Any, path: str) -> None:
    answer = await router.http.head(path)
    got = await router.http.get(path)
    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-length"] == str(len(got.content))


async def test_a_slash_too_many_is_no_redirect(router: Any, error_ok: Any, chat: Any) -> None:
    await error_ok(router.http, await router.http.post("/v1/chat/completions/", json=chat()), 404)
    await error_ok(router.http, await router.http.get("/health/live/"), 404)
