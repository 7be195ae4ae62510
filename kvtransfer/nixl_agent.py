"""The only module that imports NIXL (`nixl_cu12`): one agent per connection, all driven by one thread.

An agent of NIXL is not thread-safe, moves nothing unless it is called (its own progress thread would spin a core), and
has nothing to wait on. So one thread makes every call: it sleeps while no transfer is open, and otherwise polls the
agents that have one, backing off from 50 to 500 microseconds.

Why an agent per connection: writes are one-sided, and the only thing that stops a peer's write under way is to destroy
the agent it goes to. (Measured with 1.5.1 on TCP: after `remove_remote_agent` or `deregister_memory` the rest of the
write still landed.)
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import importlib
import os
import queue
import secrets
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from kvtransfer.protocol import TransferError
from kvtransfer.ucx_settings import apply

Result = TypeVar("Result")
Pair = tuple[int, int, int]
"""`(local address, remote address, length)`"""

MIN_PAUSE_S = 50e-6
MAX_PAUSE_S = 500e-6
ROUNDS_BEFORE_BACKING_OFF = 20
LEAVE_S = 5.0


@functools.cache
def load() -> tuple[Any, tuple[type[Exception], ...]]:
    """NIXL's interface, and what its calls raise. Raises `ImportError`. UCX reads its environment now."""
    apply({"UCX_WARN_UNUSED_ENV_VARS": "n", "UCX_LOG_LEVEL": "error", "NIXL_LOG_LEVEL": "ERROR"}, os.environ)
    interface = importlib.import_module("nixl_cu12._api")
    bindings = importlib.import_module("nixl_cu12._bindings")
    errors = tuple(getattr(bindings, name) for name in dir(bindings) if name.endswith("Error"))
    return interface, (*errors, RuntimeError)


def post(loop: asyncio.AbstractEventLoop, job: Callable[..., None], *args: object) -> None:
    """Have a loop run something. A loop that has ended no longer wants to know."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(job, *args)


class NixlThread:
    """The thread that calls NIXL. It starts with its first user and ends with its last."""

    def __init__(self) -> None:
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._polled: dict[Agent, int] = {}
        self._users = 0
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def enter(self) -> None:
        """One more user. From any thread."""
        with self._lock:
            self._users += 1
            if self._thread is None:
                self._jobs = queue.SimpleQueue()
                self._thread = threading.Thread(target=self._run, args=(self._jobs,), name="nixl", daemon=True)
                self._thread.start()

    async def leave(self) -> None:
        """One user less; returns when the thread has ended if it was the last, or hangs in the library."""
        with self._lock:
            self._users -= 1
            if self._users or self._thread is None:
                return
            thread, self._thread = self._thread, None
            self._jobs.put(None)
        await asyncio.to_thread(thread.join, LEAVE_S)

    async def call(self, job: Callable[[], Result]) -> Result:
        """Run `job` on the thread. Raises `TransferError` for what NIXL raises. A cancelled caller's job still runs."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()

        def settle(result: Result | None, error: Exception | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(result)  # type: ignore[arg-type]

        def run() -> None:
            try:
                result, error = job(), None
            except load()[1] as failure:
                result, error = None, TransferError(f"NIXL: {type(failure).__name__}: {failure}")
            post(loop, settle, result, error)

        self._jobs.put(run)
        return await done

    def poll(self, agent: Agent) -> None:
        """On the thread: call this agent until as many `rest` came."""
        self._polled[agent] = self._polled.get(agent, 0) + 1

    def rest(self, agent: Agent) -> None:
        """On the thread: one reason less to call this agent."""
        count = self._polled.get(agent, 0) - 1
        if count > 0:
            self._polled[agent] = count
        else:
            self._polled.pop(agent, None)

    def forget(self, agent: Agent) -> None:
        """On the thread: never call this agent again."""
        self._polled.pop(agent, None)

    def _run(self, jobs: queue.SimpleQueue[Callable[[], None] | None]) -> None:
        quiet_rounds = 0
        while True:
            moved = False
            try:
                while (job := jobs.get(block=not self._polled)) is not None:
                    moved = True
                    job()
                return
            except queue.Empty:
                pass
            for agent in tuple(self._polled):
                moved = agent.progress() or moved
            quiet_rounds = 0 if moved else quiet_rounds + 1
            doublings = max(0, quiet_rounds - ROUNDS_BEFORE_BACKING_OFF) // ROUNDS_BEFORE_BACKING_OFF
            time.sleep(min(MAX_PAUSE_S, MIN_PAUSE_S * 2 ** min(doublings, 8)))


class Agent:
    """One NIXL agent with one registered memory and at most one peer. Every method belongs on the thread."""

    def __init__(self, address: int, num_bytes: int, on_notice: Callable[[bytes], None]) -> None:
        interface, self._errors = load()
        config = interface.nixl_agent_config(backends=["UCX"], enable_prog_thread=False)
        self._agent = interface.nixl_agent(secrets.token_hex(16), config)
        self._registered = self._agent.register_memory([(address, num_bytes, 0, "")], "DRAM")
        self._on_notice = on_notice
        self._peer = ""
        self._writes: dict[Any, Callable[[str], None]] = {}

    def metadata(self) -> bytes:
        """What the peer needs to reach this agent."""
        found: bytes = self._agent.get_agent_metadata()
        return found

    def meet(self, metadata: bytes) -> None:
        """Learn the peer."""
        name = self._agent.add_remote_agent(metadata)
        self._peer = name.decode() if isinstance(name, bytes) else name

    def write(self, pairs: list[Pair], notice: bytes, on_done: Callable[[str], None]) -> None:
        """Start a write; `on_done` hears, on this thread, the reason why it failed or an empty string.

        The peer's agent gets `notice` after the data.
        """
        if self._agent is None:
            raise RuntimeError("the connection was closed")
        local = self._agent.get_xfer_descs([(here, size, 0) for here, _, size in pairs], "DRAM")
        remote = self._agent.get_xfer_descs([(there, size, 0) for _, there, size in pairs], "DRAM")
        handle = self._agent.initialize_xfer("WRITE", local, remote, self._peer, notice)
        self._writes[handle] = on_done
        self._settle(handle, lambda: self._agent.transfer(handle))

    def progress(self) -> bool:
        """Call NIXL once. Returns whether something ended or arrived."""
        if self._agent is None:
            return False
        num_open = len(self._writes)
        for handle in tuple(self._writes):
            self._settle(handle, functools.partial(self._agent.check_xfer_state, handle))
        arrived = False
        with contextlib.suppress(*self._errors):  # a peer that left: its connection's socket says so as well
            for notices in self._agent.get_new_notifs().values():
                for notice in notices:
                    arrived = True
                    self._on_notice(notice)
        return arrived or len(self._writes) != num_open

    def destroy(self) -> None:
        """Nothing is written to or read from this process's memory through this agent any more. Idempotent."""
        if self._agent is None:
            return
        for on_done in self._writes.values():
            on_done("the connection was closed")
        handles = list(self._writes)
        self._writes.clear()
        with contextlib.suppress(*self._errors):
            for handle in handles:
                self._agent.release_xfer_handle(handle)
        del handles
        steps: tuple[Callable[[], Any], ...] = (
            lambda: self._agent.deregister_memory(self._registered),
            lambda: self._agent.remove_remote_agent(self._peer) if self._peer else None,
        )
        for step in steps:
            with contextlib.suppress(*self._errors):
                step()
        self._agent = self._registered = None  # the last reference: NIXL's destructor closes its sockets or queues

    def _settle(self, handle: Any, ask: Callable[[], str]) -> None:
        try:
            state = ask()
            reason = "" if state != "ERR" else "NIXL reports an error"
        except self._errors as error:
            state, reason = "ERR", f"{type(error).__name__}: {error}"
        if state == "PROC":
            return
        on_done = self._writes.pop(handle)
        with contextlib.suppress(*self._errors):
            self._agent.release_xfer_handle(handle)
        on_done(reason)


THREAD = NixlThread()
"""One per process, for the agents of all loops."""
