"""A router whose replicas are named by a file that changes while it serves."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

COST = {"a0": 0.02, "a1": 2e-5, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 1e-5}
FAKE = {"cost": COST, "vocab_size": 400, "max_context": 2048, "num_blocks": 512}


async def joined(http: httpx.AsyncClient, *names: str) -> None:
    """Until the fleet is these."""
    async with asyncio.timeout(40):
        while True:
            try:
                shown = (await http.get("/fleet")).json()
                if {replica["replica_id"] for replica in shown["replicas"]} == set(names):
                    return
            except httpx.TransportError:
                pass
            await asyncio.sleep(0.05)


async def test_replicas_come_and_go_with_the_file_and_streams_end_well(
    start_replica: Any, tiny_model: Path, tmp_path: Path, unused_tcp_port: int
) -> None:
    first, second = await start_replica(fake=FAKE), await start_replica(fake=FAKE)
    file = tmp_path / "replicas"
    file.write_text(f"{first.endpoint}\n")
    words = ["router", "--model", str(tiny_model), "--port", str(unused_tcp_port)]
    words += ["--discovery", "file", "--replicas-file", str(file)]
    with (tmp_path / "router.log").open("w") as log:
        router = await asyncio.create_subprocess_exec(sys.executable, "-m", "cli", *words, stdout=log, stderr=log)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{unused_tcp_port}", timeout=60) as http:
            await joined(http, "r0")
            body = {"model": "tiny", "prompt": [7] * 9, "max_tokens": 150, "ignore_eos": True, "temperature": 0}
            running = asyncio.create_task(http.post("/v1/completions", json=body))
            # 1. another replica, and the first is struck out while it serves: its stream goes on
            file.write_text(f"{second.endpoint}  # instead\n")
            await joined(http, "r0", "r1")
            answer = await running
            assert answer.status_code == 200, answer.text
            assert answer.json()["usage"]["completion_tokens"] == 150
            # 2. it leaves, and nobody looks for it there any more
            first.signal(signal.SIGTERM)
            await joined(http, "r1")
            shown = (await http.get("/fleet")).json()
            assert shown["not_joined"] == []
            assert (await http.post("/v1/completions", json=body | {"max_tokens": 2})).status_code == 200
            text = (await http.get("/metrics")).text
            assert "phaseserve_discovery_endpoints 1.0" in text
            assert "phaseserve_discovery_changes_total 2.0" in text
        router.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(router.wait(), 20) == 0
    finally:
        if router.returncode is None:
            router.kill()
            await router.wait()
