"""Several processes as one: started in order, one log with prefixes, one way to stop, nothing left behind.

Children live in sessions of their own, so that one Ctrl-C reaches only the supervisor, which then ends them in order:
the front door first (it drains its streams), the replicas after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

READY_MARK = "PHASESERVE_READY "
LINE_LIMIT_BYTES = 1 << 20


class ChildFailedError(Exception):
    """A child ended, or did not become ready in time. The message names it and says how."""


@dataclass(slots=True)
class Child:
    """One process. `ready` holds what followed the ready mark; `restarts` the times of earlier ends."""

    name: str
    argv: Sequence[str]
    process: asyncio.subprocess.Process
    ready: asyncio.Future[str]
    reader: asyncio.Task[None] | None = None
    restarts: list[float] = field(default_factory=list)


class Supervisor:
    """Owns the children of one `phaseserve up`."""

    def __init__(self, say: Callable[[str], None] | None = None) -> None:
        self._say = say or (lambda line: print(line, flush=True))
        self.children: dict[str, Child] = {}

    async def start(self, name: str, argv: Sequence[str], *, env: dict[str, str] | None = None) -> Child:
        """Start one process; its output appears in our log behind `name`. Replaces an ended child of that name."""
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, "PYTHONUNBUFFERED": "1", **(env or {})},
            start_new_session=True,
            limit=LINE_LIMIT_BYTES,
        )
        earlier = self.children.get(name)
        child = Child(name, argv, process, asyncio.get_running_loop().create_future())
        if earlier is not None:
            child.restarts = earlier.restarts
        child.reader = asyncio.create_task(self._copy_log(child), name=f"log of {name}")
        self.children[name] = child
        return child

    async def _copy_log(self, child: Child) -> None:
        assert child.process.stdout is not None
        while True:
            try:
                raw = await child.process.stdout.readline()
            except ValueError:  # a line over the limit: the reader drops it and goes on
                self._say(f"{child.name:>8} | (a line over {LINE_LIMIT_BYTES} bytes was dropped)")
                continue
            if not raw:
                break
            line = raw.decode(errors="replace").rstrip()
            if line.startswith(READY_MARK):
                if not child.ready.done():
                    child.ready.set_result(line[len(READY_MARK) :].strip())
                continue
            self._say(f"{child.name:>8} | {line}")
        code = await child.process.wait()
        if not child.ready.done():
            child.ready.set_exception(ChildFailedError(f"{child.name} ended with code {code} before it was ready"))
            child.ready.exception()  # seen here, so that nobody has to wait for it

    async def wait_ready(self, child: Child, deadline_s: float) -> str:
        """What the child announced. Raises `ChildFailedError`."""
        try:
            return await asyncio.wait_for(asyncio.shield(child.ready), deadline_s)
        except TimeoutError:
            raise ChildFailedError(f"{child.name} was not ready after {deadline_s:.0f} s") from None

    async def wait_any_end(self) -> Child:
        """The first child that ends by itself."""
        waits = {asyncio.create_task(child.process.wait()): child for child in self.children.values()}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        return waits[done.pop()]

    def forget(self, child: Child) -> None:
        """It has ended, and that is all right."""
        del self.children[child.name]

    async def stop(self, names: Sequence[str], grace_s: float) -> None:
        """SIGTERM to these children, SIGKILL after `grace_s`; returns when all are gone and their logs are copied."""
        living = [self.children[name] for name in names if name in self.children]
        for child in living:
            _send(child, signal.SIGTERM)
        waits = [asyncio.create_task(child.process.wait()) for child in living]
        if waits:
            _, late = await asyncio.wait(waits, timeout=grace_s)
            if late:
                for child in living:
                    if child.process.returncode is None:
                        self._say(f"{child.name:>8} | did not stop within {grace_s:.0f} s: killed")
                        _send(child, signal.SIGKILL)
                await asyncio.wait(late)
        for child in living:
            if child.reader is not None:
                await child.reader

    def kill_all(self) -> None:
        """SIGKILL to everything at once (the second Ctrl-C)."""
        for child in self.children.values():
            _send(child, signal.SIGKILL)


def _send(child: Child, number: signal.Signals) -> None:
    if child.process.returncode is None:
        with contextlib.suppress(ProcessLookupError):
            child.process.send_signal(number)


def module_command(module: str, *words: str) -> list[str]:
    """The argv that runs one of our modules with this very interpreter.

    -P: the folder the user happens to be in may hold a `replica/` or `cli.py` of its own, which must not be run.
    """
    return [sys.executable, "-P", "-m", module, *words]


def own_command(*words: str) -> list[str]:
    """The argv that runs `phaseserve words...`."""
    return module_command("cli", *words)
