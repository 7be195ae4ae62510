"""What the router adds to a token at 50 streams, against a replica that notes when it handed each step over."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

STREAMS, STEPS, PACE_S = 50, 60, 0.05


@pytest.fixture
def steady() -> Iterator[SimpleNamespace]:
    """The steady replica's process, with its endpoint."""
    program = Path(__file__).parent / "steady_replica.py"
    words = [sys.executable, str(program), str(STREAMS), str(STEPS), str(PACE_S)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield SimpleNamespace(endpoint=process.stdout.readline().strip(), stdout=process.stdout)
        process.kill()


def cpu_s(pid: int) -> float:
    """CPU time of a process so far, user and system."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def token_times(port: int, number: int) -> list[float]:
    """One streamed request on a plain socket: when each content chunk was read."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    fields = {"model": "tiny", "messages": [{"role": "user", "content": f"go {number}"}], "max_tokens": STEPS}
    body = json.dumps({**fields, "stream": True, "ignore_eos": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    times: list[float] = []
    while len(times) < STEPS:
        line = await asyncio.wait_for(reader.readline(), 30)
        assert line, "the stream ended early"
        if b'"content":"' in line and b'"content":""' not in line:
            times.append(time.monotonic())
    writer.close()
    return times


async def test_the_router_costs_less_than_half_a_millisecond_a_token(start_router: Any, steady: Any) -> None:
    router = await start_router(steady)
    before_s = cpu_s(router.popen.pid)
    arrived = await asyncio.gather(*(token_times(router.port, number) for number in range(STREAMS)))
    used_s = cpu_s(router.popen.pid) - before_s
    handed_over = json.loads(await asyncio.to_thread(steady.stdout.readline))
    added_ms = sorted((at - handed_over[step]) * 1e3 for times in arrived for step, at in enumerate(times))
    per_token_ms = used_s * 1e3 / len(added_ms)
    median, worst = statistics.median(added_ms), added_ms[int(len(added_ms) * 0.99)]
    print(f"{STREAMS} streams: {per_token_ms:.3f} ms CPU a token; added p50 {median:.2f} ms, p99 {worst:.2f} ms")
    assert per_token_ms < 0.5
    assert added_ms[0] >= 0
