"""The probes of a replica process: loading is life, a frozen step is not, and who is on the way out is not ready."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.request import FinishReason

pytestmark = pytest.mark.system

STEPS_OF_20_MS = {"a0": 0.02, "a1": 1e-3, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0}
STEPS_OF_4_S = {**STEPS_OF_20_MS, "a0": 4.0}
CHECKS = ("startup", "live", "ready")


async def health_url(replica: Any, deadline_s: float = 20.0) -> str:
    """The port is in the log before the model is loaded."""
    async with asyncio.timeout(deadline_s):
        while (found := re.search(r"health is told on (http://\S+)/health/live", replica.log)) is None:  # noqa: ASYNC110 - a file tells nobody
            await asyncio.sleep(0.02)
    return found[1]


async def said(url: str) -> dict[str, int]:
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        return {check: (await client.get(f"{url}/health/{check}")).status_code for check in CHECKS}


async def wait_said(url: str, wanted: dict[str, int], deadline_s: float = 10.0) -> None:
    async with asyncio.timeout(deadline_s):
        while await said(url) != wanted:  # noqa: ASYNC110 - nor does a server
            await asyncio.sleep(0.05)


async def test_k8s_1_a_replica_that_loads_is_alive_but_not_ready(start_replica: Any, tmp_path: Path) -> None:
    """Loading takes as long as we like: the model's configuration is a pipe into which nobody writes."""
    model = tmp_path / "slow"
    model.mkdir()
    os.mkfifo(model / "config.json")
    replica = await start_replica(kind="torch", engine={"model": str(model)}, health_port=0, ready=False)
    url = await health_url(replica)
    for _ in range(5):
        assert await said(url) == {"startup": 503, "live": 200, "ready": 503}
        await asyncio.sleep(0.1)
    (model / "config.json").write_text(json.dumps({"architectures": ["Unknown"]}))
    assert await replica.wait_exit() == 2


async def test_k8s_3_ready_until_it_drains_and_alive_until_its_last_token(
    start_replica: Any, connect_router: Any
) -> None:
    replica = await start_replica(fake={"cost": STEPS_OF_20_MS}, health_port=0)
    url = await health_url(replica)
    assert await said(url) == {"startup": 200, "live": 200, "ready": 200}
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=60)
    await router.wait_outputs("a", 1)
    replica.signal(signal.SIGTERM)
    await wait_said(url, {"startup": 200, "live": 200, "ready": 503})
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    assert await replica.wait_exit() == 0


async def test_a_frozen_step_is_no_life(start_replica: Any, connect_router: Any) -> None:
    loop = {"step_overdue_s": 0.3, "heartbeat_s": 0.05}
    replica = await start_replica(fake={"cost": STEPS_OF_4_S}, health_port=0, loop=loop)
    url = await health_url(replica)
    assert await said(url) == {"startup": 200, "live": 200, "ready": 200}
    router = await connect_router(replica.endpoint)
    await router.submit("a", max_tokens=1)
    await wait_said(url, {"startup": 200, "live": 503, "ready": 503})
    assert (await router.wait_end("a")).finish is FinishReason.LENGTH
    await wait_said(url, {"startup": 200, "live": 200, "ready": 200})  # the step has ended after all


async def test_only_reading_and_only_what_there_is(start_replica: Any) -> None:
    replica = await start_replica(health_port=0)
    url = await health_url(replica)
    async with httpx.AsyncClient(trust_env=False, timeout=5.0) as client:
        assert (await client.post(f"{url}/health/live")).status_code == 405
        assert (await client.get(f"{url}/metrics")).status_code == 404
        head = await client.head(f"{url}/health/ready")
        assert (head.status_code, head.content) == (200, b"")


async def test_a_taken_port_is_refused_by_name(start_replica: Any) -> None:
    first = await start_replica(health_port=0)
    port = int((await health_url(first)).rsplit(":", 1)[1])
    second = await start_replica(health_port=port, ready=False)
    assert await second.wait_exit() == 2
    assert f"cannot listen on 127.0.0.1:{port}" in second.log
