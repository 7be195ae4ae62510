"""A fake OpenAI worker for routers that speak HTTP to their back ends. `python -m experiments.router_bench.worker`.

Every `step_s` all its streams get one token, as in one step of an engine. The text of a token is the `time.monotonic()`
at which its step ended; in the first one that at which the request had come stands before it. So whoever reads it
knows how long it was on its way. Answers the health and model questions that sglang-router asks its workers.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import time
from typing import Any, cast

import httptools
import uvloop

READY_MARK = "WORKER_READY "
MODEL = "bench"
_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Worker:
    """The streams that run, and the clock that gives each a token a step."""

    def __init__(self, step_s: float) -> None:
        self._step_s = step_s
        self._new: dict[asyncio.Transport, tuple[float, int]] = {}
        self._streams: dict[asyncio.Transport, int] = {}

    def begin(self, transport: asyncio.Transport, max_tokens: int) -> None:
        """A completion was asked for: its first token comes with the next step."""
        self._new[transport] = (time.monotonic(), max_tokens)

    def drop(self, transport: asyncio.Transport) -> None:
        """The connection is gone."""
        self._streams.pop(transport, None)
        self._new.pop(transport, None)

    async def run(self) -> None:
        """Step after step, for ever."""
        due_s = time.monotonic()
        while True:
            due_s += self._step_s
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            ended_s = time.monotonic()
            for transport, (came_s, max_tokens) in self._new.items():
                transport.write(_HEAD + _chunk(_event(f"{came_s:.6f}/{ended_s:.6f} ")))
                if max_tokens == 1:
                    transport.write(_END)
            chunk = _chunk(_event(f"{ended_s:.6f} "))
            for transport, left in list(self._streams.items()):
                if left > 1:
                    transport.write(chunk)
                    self._streams[transport] = left - 1
                else:
                    transport.write(chunk + _END)
                    del self._streams[transport]
            self._streams |= {transport: bound - 1 for transport, (_, bound) in self._new.items() if bound > 1}
            self._new.clear()


_END = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


def _event(text: str) -> bytes:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": None}
    body = {"id": "cmpl-bench", "object": "text_completion", "created": 0, "model": MODEL, "choices": [choice]}
    return b"data: " + json.dumps(body).encode() + b"\n\n"


def _chunk(payload: bytes) -> bytes:
    return f"{len(payload):x}\r\n".encode() + payload + b"\r\n"


class _Connection(asyncio.Protocol):
    """One HTTP/1.1 connection, one request at a time."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._parser = httptools.HttpRequestParser(self)
        self._url = b""
        self._body = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are not registered as such

    def connection_lost(self, error: Exception | None) -> None:
        self._worker.drop(self._transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:  # sglang-router asks in HTTP/2 first, whether this is a gRPC worker
            self._transport.close()

    def on_url(self, url: bytes) -> None:
        self._url = url
        self._body = b""

    def on_body(self, body: bytes) -> None:
        self._body += body

    def on_message_complete(self) -> None:
        if self._url.startswith(b"/v1/completions"):
            self._worker.begin(self._transport, int(json.loads(self._body)["max_tokens"]))
            return
        payload = json.dumps(_facts(self._url.decode())).encode()
        head = f"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {len(payload)}\r\n\r\n"
        self._transport.write(head.encode() + payload)


def _facts(path: str) -> dict[str, Any]:
    if path.startswith("/v1/models"):
        return {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "bench"}]}
    return {"status": "ok", "model_path": MODEL, "served_model_name": MODEL, "tp_size": 1, "dp_size": 1, "version": "0"}


async def _serve(step_s: float) -> None:
    worker = Worker(step_s)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(worker), "127.0.0.1", 0, backlog=2048)
    port = server.sockets[0].getsockname()[1]
    print(f"{READY_MARK}http://127.0.0.1:{port}", flush=True)
    steps = asyncio.create_task(worker.run())
    loop.add_signal_handler(signal.SIGTERM, steps.cancel)
    try:
        await steps
    except asyncio.CancelledError:
        server.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--step-ms", type=float, required=True)
    uvloop.run(_serve(parser.parse_args().step_ms / 1000))
