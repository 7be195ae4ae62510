"""What a supervisor (a kubelet, say) may ask a replica over HTTP: is it started, alive, ready. Read only, no policy.

GET /health/startup   200 once the model is loaded and the control port is open
GET /health/live      200 while it makes progress or loads; 503 while the engine's step is overdue
GET /health/ready     200 while new requests would be served: loaded, not draining, no step overdue, data plane running

Answered by the replica's own event loop: if that stands still, nothing is answered, which a probe counts as failed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import logging
import socket
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from contracts.errors import ConfigError

log = logging.getLogger("phaseserve.replica")

MAX_CONNECTIONS = 32
CONNECTION_S = 5.0
CLOSE_S = 2.0

Reason = Callable[[], str | None]


class Health:
    """What the replica says of itself. `stalled` and `not_ready` are asked once it serves: None, or why."""

    def __init__(self) -> None:
        self._stalled: Reason | None = None
        self._not_ready: Reason | None = None

    def serving(self, stalled: Reason, not_ready: Reason) -> None:
        """The model is loaded and the control port open."""
        self._stalled, self._not_ready = stalled, not_ready

    def startup(self) -> str | None:
        """None once loaded."""
        return "the model is being loaded" if self._stalled is None else None

    def live(self) -> str | None:
        """None while there is progress. Loading is progress: how long it may take is for the startup probe to say."""
        return None if self._stalled is None else self._stalled()

    def ready(self) -> str | None:
        """None while a new request would be served."""
        return self.startup() if self._not_ready is None else self.live() or self._not_ready()


class _Server(uvicorn.Server):
    """Signals are the replica's own."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class _Connection(HttpToolsProtocol):
    """Lives `CONNECTION_S` at most, and less when `MAX_CONNECTIONS` newer ones come: a probe is the newest, so it
    is answered however many there are that say nothing, or say it slowly. Were it refused, the replica would be ended.
    """

    _numbers = itertools.count()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as in uvicorn
        """Makes room for itself."""
        super().connection_made(transport)
        self._number = next(self._numbers)
        self._end = self.loop.call_later(CONNECTION_S, transport.abort)
        others = [one for one in self.connections if isinstance(one, _Connection)]
        if len(others) > MAX_CONNECTIONS:
            oldest = min(others, key=lambda one: one._number)
            self.connections.discard(oldest)
            oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Its time is over."""
        self._end.cancel()
        super().connection_lost(exc)


@asynccontextmanager
async def health_server(health: Health, host: str, port: int | None) -> AsyncIterator[int | None]:
    """Answers on `port` (0: any free one) as long as it is open, and yields the port; nothing where it is None.

    Raises `ConfigError` when the port cannot be had.
    """
    if port is None:
        yield None
        return
    listener = _listen(host, port)
    settings = uvicorn.Config(
        _application(health),
        http=_Connection,
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        timeout_graceful_shutdown=1,
    )
    server = _Server(settings)
    task = asyncio.create_task(server.serve(sockets=[listener]), name="health")
    try:
        port = listener.getsockname()[1]
        log.info("health is told on http://%s:%d/health/live, /health/ready and /health/startup", host, port)
        yield port
    finally:
        server.should_exit = True
        done, _ = await asyncio.wait({task}, timeout=CLOSE_S)
        if not done:
            task.cancel()
        listener.close()


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen()
    except OSError as error:
        listener.close()
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}", param="health_port") from error
    return listener


def _application(health: Health) -> Any:
    checks = {"/health/startup": health.startup, "/health/live": health.live, "/health/ready": health.ready}

    async def application(scope: dict[str, Any], _receive: Any, send: Any) -> None:
        check = checks.get(scope["path"])
        if check is None:
            status, answer = 404, {"error": f"there is nothing here but {', '.join(checks)}"}
        elif scope["method"] not in ("GET", "HEAD"):
            status, answer = 405, {"error": "GET or HEAD"}
        else:
            reason = check()
            status, answer = (200, {"status": "ok"}) if reason is None else (503, {"status": "no", "reason": reason})
        body = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return application
