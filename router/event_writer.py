"""Writes one stream's events: where the tokens arrive while the client keeps up, else from the stream's own task.

A step brings a token for every stream at once, and waking a task for each costs more than the rest of the router. The
server's `send` ends without waiting unless its buffer for this client is full; it is therefore begun on the spot. When
it does have to wait, the stream's task ends that write, and what arrives meanwhile waits in the call, as bounded as it
is for a client that never reads. At most one write of a stream is under way, so events keep their order.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from starlette.types import Send

from router.answers import Answers
from router.call import Call
from router.eager import Suspended, begin


class EventWriter:
    """`write` and `close` are for the stream's task."""

    def __init__(self, call: Call, answers: Answers, send: Send) -> None:
        self._call = call
        self._answers = answers
        self._send = send
        self._suspended: Suspended | None = None
        self._failure: Exception | None = None

    async def write(self, events: bytes, *, last: bool = False) -> None:
        """Ends the write under way, then writes `events`; raises what either raises."""
        if self._failure is not None:
            raise self._failure
        if self._suspended is not None:
            suspended, self._suspended = self._suspended, None
            await suspended
        if events or last:
            await self._send({"type": "http.response.body", "body": events, "more_body": not last})

    @contextmanager
    def at_arrival(self) -> Iterator[None]:
        """While the task waits for its call, what arrives is written at once. The task is woken for the rest: a write
        that has to wait, the last event, an error."""
        self._call.on_change = self._write_now
        try:
            yield
        finally:
            self._call.on_change = None

    def close(self) -> None:
        """Give up a write that is still under way."""
        if self._suspended is not None:
            self._suspended.close()
            self._suspended = None

    def _write_now(self, index: int) -> bool:
        if self._suspended is not None or self._failure is not None:
            return False
        event = self._answers.event(index)
        if event:
            try:
                self._suspended = begin(self._send({"type": "http.response.body", "body": event, "more_body": True}))
            except Exception as error:  # noqa: BLE001  (this stream's alone: its task raises it, the others go on)
                self._failure = error
        return self._suspended is None and self._failure is None and not self._answers.all_closed
