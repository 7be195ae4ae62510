"""What the command line says when the other end is no server of ours: one sentence, never a traceback."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import httpx
import pytest

from cli.chat import ask
from cli.http_client import ServerError, chat_events, get_json, served_models


@pytest.fixture
def answering() -> Iterator[Any]:
    """A server whose answer to everything is `answering.body`; `answering.bearers` are those that it was sent."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.server.bearers.append(self.headers["authorization"])  # type: ignore[attr-defined]
            self.send_response(200)
            self.end_headers()
            self.wfile.write(self.server.body)  # type: ignore[attr-defined]

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.do_GET()

        def log_message(self, *words: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        server.bearers = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "url", ["nowhere", "http://::1:8000", "http://127.0.0.1:port", "http://127.0.0.1:1", "ftp://x"]
)
def test_a_url_that_leads_nowhere(url: str) -> None:
    with pytest.raises(ServerError):
        get_json(url, "/v1/models")
    with pytest.raises(ServerError):
        list(chat_events(url, {}, api_key=None, timeout_s=5))


@pytest.mark.parametrize("body", [b"<html>", b"", b"null", b"[]", b"{}", b'{"data": 1}', b'{"data": [{}]}', b"\xff"])
def test_an_answer_of_another_kind(answering: Any, body: bytes) -> None:
    answering.body = body
    with pytest.raises(ServerError):
        served_models(f"http://127.0.0.1:{answering.server_port}", api_key=None, timeout_s=5)


def test_every_question_of_a_chat_brings_the_key(answering: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of models, too: where keys are wanted, nothing under /v1 is told without one."""
    monkeypatch.setenv("OPENAI_API_KEY", "a-key-of-mine")
    answering.body = b'{"data": [{"id": "m"}]}'
    ask(f"http://127.0.0.1:{answering.server_port}", "Why?", max_tokens=1, temperature=0.0, timeout_s=5)
    assert answering.bearers == ["Bearer a-key-of-mine"] * 2


def test_a_stream_of_another_kind(answering: Any) -> None:
    answering.body = b"data: <html>\n\n"
    with pytest.raises(ServerError, match="not JSON"):
        list(chat_events(f"http://127.0.0.1:{answering.server_port}", {}, api_key=None, timeout_s=5))


def test_an_error_without_text_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks(*_: object, **__: object) -> httpx.Response:
        raise httpx.ReadError("")

    monkeypatch.setattr(httpx, "request", breaks)
    with pytest.raises(ServerError, match="ReadError"):
        get_json("http://127.0.0.1:1", "/")
