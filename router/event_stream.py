"""The streamed answer of one exchange, as a response."""

from __future__ import annotations

import asyncio
import logging

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.exchange import Exchange

log = logging.getLogger("phaseserve.router")


class EventStream(Response):
    """Server-sent events of one exchange, which it closes."""

    media_type = "text/event-stream"

    def __init__(self, exchange: Exchange, first: bytes, headers: dict[str, str]) -> None:
        super().__init__(headers={**headers, "cache-control": "no-cache", "x-accel-buffering": "no"})
        del self.headers["content-length"]
        self._exchange = exchange
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until the end, the client's leaving, or a bound on waiting for a client that does not read."""
        with self._exchange as exchange:
            try:
                async with asyncio.timeout_at(exchange.write_until_s):
                    await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                    await exchange.events(self._first, send)
            except TimeoutError:
                log.warning("request %s: the client does not read; connection given up", exchange.call.generation.id)
            except OSError:
                log.debug("request %s: the client left while it was written to", exchange.call.generation.id)
