"""Reading a request body piece by piece, never more than the limit into memory, never longer than the deadline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from starlette.requests import ClientDisconnect, Request

from contracts.errors import Cancelled, RequestTimeout, RequestTooLarge, UnsupportedEncoding
from router.client_text import clip
from router.config import RequestLimits

DISCARD_S = 10.0


class OpenBodies:
    """The bodies that are being received, oldest first, and how many are being judged.

    They are bounded apart: a body that has not arrived costs little and may never arrive. Of too many the oldest
    makes room, so that whoever sends at once is read, however many others send slowly.
    """

    def __init__(self) -> None:
        self.num_judged = 0
        self._arriving: dict[asyncio.Timeout, None] = {}

    @contextmanager
    def judging(self) -> Iterator[None]:
        """One of them."""
        self.num_judged += 1
        try:
            yield
        finally:
            self.num_judged -= 1

    @asynccontextmanager
    async def arriving(self, limits: RequestLimits) -> AsyncIterator[asyncio.Timeout]:
        """Raises `RequestTimeout` at the deadline, or earlier when too many others came after this one."""
        if len(self._arriving) >= limits.max_receiving:
            oldest = next(iter(self._arriving))
            del self._arriving[oldest]
            if not oldest.expired():
                oldest.reschedule(asyncio.get_running_loop().time())
        patience: asyncio.Timeout | None = None
        try:
            async with asyncio.timeout(limits.body_deadline_s) as patience:
                self._arriving[patience] = None
                yield patience
        except TimeoutError as error:
            raise RequestTimeout(f"the body did not arrive within {limits.body_deadline_s:g} s") from error
        finally:
            if patience is not None:
                self._arriving.pop(patience, None)


async def read_body(request: Request, limits: RequestLimits, bodies: OpenBodies) -> bytes:
    """The whole body. Raises `RequestTooLarge` over the limit, `RequestTimeout` when it does not arrive in time,
    `UnsupportedEncoding` when it is compressed, `Cancelled` when the client leaves before its end.

    What the headers tell is judged before anything is received: uvicorn reads and drops what is sent nevertheless.
    What is left of a body of unknown length over the limit is dropped here for a while: most clients read the answer
    only after they have sent everything, and would otherwise see a broken connection instead of the 413.
    """
    _check_head(request, limits)
    parts: list[bytes] = []
    size = 0
    try:
        async with bodies.arriving(limits) as patience:
            async for part in request.stream():
                size += len(part)
                if size <= limits.max_body_bytes:
                    parts.append(part)
                elif parts:
                    parts.clear()
                    _shorten(patience)
    except ClientDisconnect as error:
        raise Cancelled("the client left before its request was complete") from error
    except RequestTimeout:
        if size <= limits.max_body_bytes:
            raise
    if size > limits.max_body_bytes:
        raise _too_large(limits)
    return b"".join(parts)


def _check_head(request: Request, limits: RequestLimits) -> None:
    encoding = request.headers.get("content-encoding", "identity")
    if encoding.strip().lower() not in {"identity", ""}:
        raise UnsupportedEncoding(f"content-encoding {clip(encoding)!r} is not supported, only identity")
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced) > limits.max_body_bytes:
        raise _too_large(limits)


def _shorten(patience: asyncio.Timeout) -> None:
    deadline_s, discard_s = patience.when(), asyncio.get_running_loop().time() + DISCARD_S
    if deadline_s is not None and not patience.expired():
        patience.reschedule(min(deadline_s, discard_s))


def _too_large(limits: RequestLimits) -> RequestTooLarge:
    return RequestTooLarge(f"the body is larger than the limit of {limits.max_body_bytes} bytes")
