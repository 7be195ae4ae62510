"""One point: the link set, the estimate of it settled, all requests sent, the fleet empty again, decisions read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import aiohttp
import msgspec

from contracts.phase import Layout, Role
from contracts.views import StepCost
from experiments.bandwidth_sweep.fleets import MODEL, Running
from experiments.bandwidth_sweep.options import AUTO, BITS, Options
from experiments.bandwidth_sweep.seen import Point, seen_of
from experiments.bandwidth_sweep.workload import Arrival, prompt_ids
from experiments.load.client import Job, Sample, Target, send
from experiments.network.lan import FRAME_SHARE

SETTLE_TOKENS = 128
SETTLE_S = 20.0
SETTLED = 0.15
IDLE_S = 60.0
POLL_S = 0.2
ALL_DECISIONS = 10_000


class SweepError(Exception):
    """A point could not be measured; the message says why."""


def measure(running: Running, options: Options, asked: Sequence[Arrival], mode: str, mbit_per_s: float) -> Point:
    """The point of one mode at one rate. Raises `SweepError` when the fleet does not become idle."""
    url = running.fleet.url
    running.shape(mbit_per_s)
    if mode in (Layout.DISAGGREGATED.value, AUTO):
        settle(running, mbit_per_s)
    wait_idle(running.snapshot)
    before = running.wire_bytes()
    label = f"sweep-{mode}-{mbit_per_s:g}"
    jobs = [
        Job(one.at_s, prompt_ids(one.prompt_tokens, f"{label}-{number}"), one.output_tokens, f"{label}-{number}")
        for number, one in enumerate(asked)
    ]
    samples = asyncio.run(send_all(_target(url, mode), jobs, asked[-1].at_s + options.grace_s))
    snapshot = wait_idle(running.snapshot)
    wire_bytes = running.wire_bytes() - before
    shown = {
        decision["request_id"]: decision
        for decision in running.fleet.get(f"/decisions?limit={ALL_DECISIONS}")["decisions"]
    }
    return Point(
        mode=mode,
        mbit_per_s=mbit_per_s,
        seen=tuple(
            seen_of(shown.get(f"cmpl-{job.request_id}"), sample.error)
            for job, sample in zip(jobs, samples, strict=True)
        ),
        span_s=len(asked) / options.workload.per_s,
        wire_bytes=wire_bytes,
        link_bytes_per_s=_link_rate(snapshot),
        cost=_cost(snapshot),
    )


def settle(running: Running, mbit_per_s: float) -> None:
    """Hand over until the fleet's links are estimated at the rate they now have, for some seconds at the most: what is
    measured is the choice at a rate, not how soon a change is noticed. Where the estimate stays off, the table says so.
    """
    expected = mbit_per_s / BITS * FRAME_SHARE
    deadline = time.monotonic() + SETTLE_S
    target = _target(running.fleet.url, Layout.DISAGGREGATED.value)
    while (left_s := deadline - time.monotonic()) > 0.0:
        name = f"settle-{time.monotonic_ns()}"
        asyncio.run(send_all(target, [Job(0.0, prompt_ids(SETTLE_TOKENS, name), 2, name)], left_s))
        rates = [link["link"]["bytes_per_s"] for link in running.snapshot()["links"]]
        if rates and all(rate is not None and abs(rate / expected - 1.0) <= SETTLED for rate in rates):
            return


def wait_idle(snapshot_of: Callable[[], Mapping[str, Any]]) -> Mapping[str, Any]:
    """Until nothing runs, waits or crosses any more. Raises `SweepError` after a minute."""
    deadline = time.monotonic() + IDLE_S
    while True:
        snapshot = snapshot_of()
        busy = [replica["replica_id"] for replica in snapshot["replicas"] if _is_busy(replica["view"])]
        if not busy and not snapshot["pending"]:
            return snapshot
        if time.monotonic() > deadline:
            raise SweepError(f"still busy after {IDLE_S:.0f} s: {', '.join(busy) or 'pending requests'}")
        time.sleep(POLL_S)


def _is_busy(view: Mapping[str, Any]) -> bool:
    return any(view.get(name, 0) for name in ("running", "waiting", "receiving", "sending"))


def _target(url: str, mode: str) -> Target:
    wish = {} if mode == AUTO else {"phaseserve": {"layout": mode, "on_unavailable": "fail"}}
    return Target(url, MODEL, extra=wish)


async def send_all(target: Target, jobs: Sequence[Job], end_s: float) -> list[Sample]:
    """All jobs at their times; what has not ended after `end_s` is given up."""
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        began = time.perf_counter()

        async def at_its_time(job: Job) -> Sample:
            await asyncio.sleep(max(0.0, began + job.at_s - time.perf_counter()))
            left_s = max(0.0, began + end_s - time.perf_counter())
            try:
                async with asyncio.timeout(left_s):
                    return await send(session, target, job, began)
            except TimeoutError:
                return Sample(sent_at_s=job.at_s, error="not finished in time")

        return list(await asyncio.gather(*(at_its_time(job) for job in jobs)))


def _link_rate(snapshot: Mapping[str, Any]) -> float | None:
    """The mean estimate over all links."""
    rates = [link["link"]["bytes_per_s"] for link in snapshot.get("links", ())]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def _cost(snapshot: Mapping[str, Any]) -> StepCost:
    """Of a replica that prefills: in the pools, one that does nothing else."""
    views = [replica["view"] for replica in snapshot["replicas"]]
    able = [view for view in views if view["role"] != Role.DECODE.value]
    return msgspec.convert(able[0]["cost"], StepCost, strict=False)
