"""Reading a request body piece by piece, never more than the limit into memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from starlette.requests import ClientDisconnect, Request

from contracts.errors import Cancelled, RequestTooLarge

DISCARD_S = 10.0


class OpenBodies:
    """Counts the bodies that are being read or judged."""

    def __init__(self) -> None:
        self.num_open = 0

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """One of them."""
        self.num_open += 1
        try:
            yield
        finally:
            self.num_open -= 1


async def read_body(request: Request, limit_bytes: int) -> bytes:
    """The whole body. Raises `RequestTooLarge` over the limit, `Cancelled` when the client leaves before its end.

    What is left of a body over the limit is read and dropped for a while: most clients read the answer only after
    they have sent everything, and would otherwise see a broken connection instead of the 413.
    """
    announced = request.headers.get("content-length", "")
    too_large = announced.isdigit() and int(announced) > limit_bytes
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(None) as patience:
            async for part in request.stream():
                size += len(part)
                if too_large or size > limit_bytes:
                    too_large = True
                    parts.clear()
                    if patience.when() is None:
                        patience.reschedule(asyncio.get_running_loop().time() + DISCARD_S)
                else:
                    parts.append(part)
    except ClientDisconnect as error:
        raise Cancelled("the client left before its request was complete") from error
    except TimeoutError:
        assert too_large  # the only case with a deadline; answered now, whatever the client still sends
    if too_large:
        raise RequestTooLarge(f"the body is larger than the limit of {limit_bytes} bytes")
    return b"".join(parts)
