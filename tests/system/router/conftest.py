"""Real router processes on ports of their own, for a tiny model that resolves."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class RouterProcess:
    """`phaseserve router` on a port of its own."""

    def __init__(
        self, model: Path, endpoints: list[str], log_path: Path, *settings: str, port: int | None = None
    ) -> None:
        self.port = free_port() if port is None else port
        words = ["router", "--model", str(model), "--port", str(self.port)]
        words += [word for endpoint in endpoints for word in ("--replica", endpoint)]
        words += [word for setting in settings for word in ("--set", setting)]
        self.log_path = log_path
        with log_path.open("w") as log:
            self.popen = subprocess.Popen([sys.executable, "-m", "cli", *words], stdout=log, stderr=log)
        self.http = httpx.AsyncClient(base_url=f"http://127.0.0.1:{self.port}", timeout=60)

    async def ready(self) -> bool:
        with contextlib.suppress(httpx.TransportError):
            return (await self.http.get("/health/ready")).status_code == 200
        return False

    async def wait(self, wanted: bool = True, deadline_s: float = 40.0) -> None:
        """Until ready, or until not ready."""
        async with asyncio.timeout(deadline_s):
            while await self.ready() is not wanted:
                assert self.popen.poll() is None, self.log_path.read_text()
                await asyncio.sleep(0.05)

    async def fleet(self) -> dict[str, dict[str, Any]]:
        """The last view of every live replica."""
        shown = (await self.http.get("/decisions?limit=1")).json()["fleet"]["replicas"]
        return {replica["replica_id"]: replica["view"] for replica in shown}

    async def wait_nothing_left(self, deadline_s: float = 10.0) -> None:
        """Every block of every live replica is free and nothing waits or runs."""

        def is_empty(view: dict[str, Any]) -> bool:
            return bool(view["running"] == view["waiting"] == 0 and view["free_blocks"] == view["num_blocks"])

        await self.wait_fleet(lambda views: all(is_empty(view) for view in views.values()), deadline_s)

    async def wait_fleet(self, condition: Callable[[dict[str, Any]], bool], deadline_s: float = 20.0) -> None:
        """Until the views are as wanted."""
        async with asyncio.timeout(deadline_s):
            while not condition(await self.fleet()):  # noqa: ASYNC110  (the fleet is in other processes)
                await asyncio.sleep(0.02)

    async def exit_code(self, deadline_s: float = 30.0) -> int:
        return await asyncio.to_thread(self.popen.wait, deadline_s)


StartRouter = Callable[..., Awaitable[RouterProcess]]


@pytest.fixture
async def start_router(tiny_model: Path, tmp_path: Path) -> AsyncIterator[StartRouter]:
    """`await start_router(replica, ..., settings=("router.silence_s=1",))`: ready, with all these replicas in it."""
    started: list[RouterProcess] = []

    async def start(
        *replicas: Any,
        settings: tuple[str, ...] = (),
        ready: bool = True,
        model: Path | None = None,
        port: int | None = None,
    ) -> RouterProcess:
        endpoints = [replica.endpoint for replica in replicas] or ["tcp://127.0.0.1:1"]
        log_path = tmp_path / f"router{len(started)}.log"
        router = RouterProcess(model or tiny_model, endpoints, log_path, *settings, port=port)
        started.append(router)
        if ready:
            await router.wait()
            await router.wait_fleet(lambda views: len(views) == len(replicas))
        return router

    yield start
    for router in started:
        await router.http.aclose()
        if router.popen.poll() is None:
            router.popen.kill()
        router.popen.wait(10)
