"""The only module that imports UCXX (`ucxx`), or ucx-py (`ucp`) where only that is there.

UCXX is the successor that ucx-py's own maintainers name; its API is nearly the same, and so the code here is one.

One `UcxContext` serves all receivers and senders of one event loop. UCXX keeps one context per process, bound to the
loop that was running when it was made; services with loops of their own therefore need a context each, and each has to
start and stop its two threads (progress, notifier) by itself: a live notifier thread keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import functools
import importlib
import os
import re
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from kvtransfer.protocol import TransferError
from kvtransfer.ucx_settings import apply

_RESOURCE = re.compile(r"^#.*resource.*md.*dev.*flags.*$", re.MULTILINE)
_contexts: WeakKeyDictionary[asyncio.AbstractEventLoop, UcxContext] = WeakKeyDictionary()


@functools.cache
def load() -> ModuleType:
    """`ucxx`, else `ucp`. Raises `ImportError`. UCX reads its environment now: set it before."""
    apply({"UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_LEVEL": "error"}, os.environ)
    try:
        return importlib.import_module("ucxx")
    except ImportError:
        return importlib.import_module("ucp")


def error_type() -> type[Exception]:
    """What every failed operation raises."""
    library = load()
    found: type[Exception] = library.exceptions.UCXError
    return found


def is_closed(endpoint: Any) -> bool:
    """Whether an endpoint is over. UCXX's `send` returns as if all were well when it was cancelled by a dead peer."""
    closed = endpoint.closed
    return bool(closed() if callable(closed) else closed)


class UcxContext:
    """UCX for one event loop. `acquire` and `release` count its users; without one it has no threads."""

    def __init__(self) -> None:
        self.users = 0
        self._library = load()
        self._application = self._start()
        self._closer = ThreadPoolExecutor(1, thread_name_prefix="ucx-close")

    def stop_threads(self) -> None:
        """For a process that ends without `release`, which a notifier thread would keep alive for ever."""
        if self._application is not None and self._library.__name__ == "ucxx":
            _stop(self._application)

    @classmethod
    def acquire(cls) -> UcxContext:
        """The context of the running loop. Raises `TransferError` when UCX does not start (no such device)."""
        loop = asyncio.get_running_loop()
        context = _contexts.get(loop)
        if context is None:
            try:
                context = _contexts[loop] = cls()
            except (ImportError, OSError, RuntimeError, error_type()) as error:
                raise TransferError(f"UCX does not start: {type(error).__name__}: {error}") from error
        context.users += 1
        return context

    async def release(self) -> None:
        """The last user leaves: end the threads."""
        self.users -= 1
        if self.users:
            return
        application, self._application = self._application, None
        _contexts.pop(asyncio.get_running_loop(), None)
        if self._library.__name__ == "ucxx":
            await asyncio.get_running_loop().run_in_executor(self._closer, _stop, application)
        self._closer.shutdown(wait=False)

    def listen(self, on_endpoint: Callable[[Any], Awaitable[None]]) -> Any:
        """A listener on any port; it lives as long as the returned object. `on_endpoint`: a coroutine function."""
        return self._application.create_listener(on_endpoint, port=0)

    async def dial(self, host: str, port: int) -> Any:
        """An endpoint, with error handling on (a dead peer is an error then, not a hang)."""
        return await self._application.create_endpoint(host, port)

    async def abort(self, endpoint: Any) -> None:
        """Close an endpoint at once; afterwards UCX neither reads nor writes memory on its behalf."""
        await asyncio.get_running_loop().run_in_executor(self._closer, endpoint.abort)

    def active_transports(self) -> frozenset[str]:
        """UCX's names of the transports that it may use: `tcp`, `rc_mlx5`, ..."""
        info = self._application.ucp_context_info if self._library.__name__ == "ucxx" else self._info()
        return frozenset(line.split()[-1].split("/")[0] for line in _RESOURCE.findall(info))

    def _info(self) -> str:
        return str(self._library.get_ucp_context_info())

    def _start(self) -> Any:
        library = self._library
        if library.__name__ == "ucp":  # one context per process, and it follows the loop by itself
            return library
        base: Any = library.core.ApplicationContext

        class Application(base):  # type: ignore[misc]
            """UCXX's own bookkeeping of progress threads forgets those of all loops when one context ends."""

            started = False

            def continuous_ucx_progress(self, event_loop: object = None) -> None:
                """Start the progress thread, once."""
                if not self.started:
                    self.started = True
                    self.worker.start_progress_thread(polling_mode=False, epoll_timeout=1)

        # Without Python futures every wait spins a core.
        return Application(progress_mode="thread", enable_python_future=True)


def _stop(application: Any) -> None:
    application.worker.stop_request_notifier_thread()
    application.stop_notifier_thread()
    application.worker.stop_progress_thread()


def _stop_all() -> None:
    for context in list(_contexts.values()):
        context.stop_threads()


# Runs before the interpreter waits for its threads; `atexit` would come after, that is never.
threading._register_atexit(_stop_all)  # type: ignore[attr-defined]
