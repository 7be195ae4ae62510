"""The one thread that touches the engine: builds it, steps it, closes it. The event loop only waits for futures.

A step that hangs cannot be interrupted, so the thread is a daemon: whoever ends the process decides how long to wait.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from contracts.errors import PhaseServeError

T = TypeVar("T")


class EngineLostError(PhaseServeError):
    """A step did not end within its deadline, or step after step failed: the process has to end."""

    code = "engine_lost"


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Any]
    future: asyncio.Future[Any]
    loop: asyncio.AbstractEventLoop


class EngineThread:
    """Runs functions one after the other on a thread of its own."""

    def __init__(self, name: str = "engine") -> None:
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def call(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Run `function` on the thread; the future belongs to the running event loop and carries what it raised."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[T] = loop.create_future()
        self._calls.put(_Call(function, future, loop))
        return future

    def close(self, deadline_s: float) -> bool:
        """End the thread after the calls already made. False if it was still busy after `deadline_s`."""
        self._calls.put(None)
        self._thread.join(deadline_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                result, error = call.function(), None
            except Exception as raised:  # noqa: BLE001 - the boundary of this thread: the future carries it on
                result, error = None, raised
            with contextlib.suppress(RuntimeError):  # the event loop is closed: nobody waits any more
                call.loop.call_soon_threadsafe(_settle, call.future, result, error)
            del call, result, error  # hold no batch, result or traceback while waiting


def _settle(future: asyncio.Future[Any], result: Any, error: Exception | None) -> None:
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    else:
        future.set_result(result)
