"""How a replica is asked to end: drained (first SIGTERM), or at once (SIGINT, another SIGTERM, the parent is gone)."""

from __future__ import annotations

import asyncio
import os
import signal

PARENT_POLL_S = 0.25


class Shutdown:
    """What was asked, and why. Once asked to stop, a drain makes no difference any more."""

    def __init__(self) -> None:
        self.reason = ""
        self._drain = False
        self._terminated = False
        self._stop = asyncio.Event()
        self._noticed = asyncio.Event()

    @property
    def draining(self) -> bool:
        """Accept nothing new, finish what is here."""
        return self._drain

    @property
    def stopping(self) -> bool:
        """End now."""
        return self._stop.is_set()

    def drain(self, reason: str) -> None:
        """Ask for a drain; asking again changes nothing."""
        if not self._drain:
            self._drain = True
            self.reason = reason
            self._noticed.set()

    def terminate(self) -> None:
        """SIGTERM: drain. A second one means stop, but not the first after a router asked for a drain: whoever makes a
        fleet smaller does both, one after the other."""
        if self._terminated:
            self.stop("SIGTERM, again")
        self._terminated = True
        self.drain("SIGTERM")

    def stop(self, reason: str) -> None:
        """Ask to end at once."""
        if not self._stop.is_set():
            self.reason = reason
            self._stop.set()
            self._noticed.set()

    async def asked(self) -> None:
        """Returns once a drain or a stop was asked for."""
        await self._noticed.wait()

    async def stopped(self) -> None:
        """Returns once a stop was asked for."""
        await self._stop.wait()

    def listen_to_signals(self, loop: asyncio.AbstractEventLoop) -> None:
        """SIGTERM drains, SIGINT stops."""
        loop.add_signal_handler(signal.SIGTERM, self.terminate)
        loop.add_signal_handler(signal.SIGINT, self.stop, "SIGINT")

    async def watch_parent(self, parent_pid: int) -> None:
        """Stop once the process that started us is gone."""
        while os.getppid() == parent_pid:  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(PARENT_POLL_S)
        self.stop("the parent process is gone")
