"""The live side: a fleet of each layout under each load, and what it adds to its steps, measured when nobody waits."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from contracts.request import Slo
from contracts.views import StepCost
from experiments.bandwidth_sweep.seen import Seen
from experiments.calibration.workload import asked
from experiments.load.machine import busy_seconds, cpu_seconds, thread_seconds
from experiments.macro_live.serving import Setup, measured, serving
from experiments.macro_live.workload import Ask
from simulator.cost import Fitted
from simulator.cost_file import CostFile, encoded
from simulator.fitting import Residuals
from simulator.scenario import KVShape

IDLE_REQUESTS = 8
IDLE_GAP_S = 0.8
IDLE_PROMPT, IDLE_OUTPUT = 32, 24
NUM_REPLICAS = 2


class LivePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One load on one layout: the requests, what each saw, what the links were found to carry, how many CPU seconds a
    second of it took, of its own processes and of any others, how many of its own were not the engines' (router, loops,
    transfers, client), and what steps cost as the live replicas learnt it meanwhile (for comparison: the simulator is
    not told)."""

    layout: str
    per_s: float
    requests: tuple[Ask, ...]
    seen: tuple[Seen, ...]
    link_bytes_per_s: float | None
    own_cores: float
    other_cores: float
    beside_cores: float = 0.0
    learnt: tuple[StepCost, ...] = ()


class Idle(msgspec.Struct, frozen=True, kw_only=True):
    """Medians over single requests, one after the other, on a fleet that does nothing else."""

    layout: str
    ttft_s: float
    tpot_s: float


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """All that was measured live."""

    slo: Slo
    idle: tuple[Idle, ...]
    points: tuple[LivePoint, ...]
    cores: int = 2


def profile(quantization: str, repeats: int, out: Path) -> None:
    """`phaseserve profile` as a user would run it. Raises `CalledProcessError`."""
    words = ["-m", "cli", "profile", "--quantization", quantization, "--threads", "1", "--neighbours", "1"]
    words += ["--repeats", str(repeats), "--out", str(out)]
    subprocess.run([sys.executable, *words], check=True, timeout=900.0, stderr=subprocess.DEVNULL)


def sleeping(out: Path) -> tuple[str, ...]:
    """The settings of a fake engine whose steps sleep for known times; the cost file says the same."""
    cost = Fitted(a0=0.010, a1=0.0005, b0=1e-7, b1=1e-7, b2=2e-6, b3=0.0008)
    kv = KVShape(num_layers=2, num_kv_heads=2, head_dim=16, dtype="float32")
    exact = Residuals(mape=0.0, p95=0.0, noise=0.0, points=1)
    content = CostFile(cost=cost, residuals=exact, kv=kv, num_blocks=2048, max_context=8192, about="a fake engine")
    out.write_bytes(encoded(content))
    terms = ", ".join(f"{name} = {getattr(cost, name)}" for name in cost.__struct_fields__)
    return (f"replica.fake.cost={{{terms}}}", "replica.fake.num_blocks=2048")


def beside_engines(before: Mapping[tuple[int, int], float], after: Mapping[tuple[int, int], float]) -> float:
    """CPU seconds of all threads but the busiest one of each replica, which is its engine."""
    spent_s = sorted(seconds - before.get(thread, 0.0) for thread, seconds in after.items())
    return sum(spent_s[:-NUM_REPLICAS])


def run_layout(
    setup: Setup, layout: str, rates: list[float], seconds: float, logs: Path, seed: int, say: Callable[[str], None]
) -> Iterator[Idle | LivePoint]:
    """One fleet from start to end: idle first, then each load."""
    with serving(setup, layout, logs) as url:
        gap = [
            Ask(at_s=IDLE_GAP_S * number, key="", prompt_tokens=IDLE_PROMPT, output_tokens=IDLE_OUTPUT)
            for number in range(IDLE_REQUESTS)
        ]
        single = [one.seen for one in measured(url, gap, f"idle-{layout}")]
        yield Idle(
            layout=layout,
            ttft_s=statistics.median(one.ttft_s for one in single if one.ttft_s is not None),
            tpot_s=statistics.median(one.decode_tpot_s for one in single if one.decode_tpot_s is not None),
        )
        for per_s in rates:
            requests = asked(per_s, seconds, seed)
            before_s, own_before_s, began = busy_seconds(), cpu_seconds(os.getpid()), time.monotonic()
            threads = thread_seconds(os.getpid())
            served = measured(url, requests, f"{layout}-{per_s:g}-{seed}")
            span_s = time.monotonic() - began
            own_s = cpu_seconds(os.getpid()) - own_before_s
            other_s = busy_seconds() - before_s - own_s
            beside_s = beside_engines(threads, thread_seconds(os.getpid()))
            fleet = _fleet(url)
            yield LivePoint(
                layout=layout,
                per_s=per_s,
                requests=requests,
                seen=tuple(one.seen for one in served),
                link_bytes_per_s=_link_rate(fleet),
                own_cores=own_s / span_s,
                other_cores=max(0.0, other_s / span_s),
                beside_cores=beside_s / span_s,
                learnt=_learnt(fleet),
            )
            say(f"{layout}, {per_s:g}/s: {len(requests)} requests, {sum(one.seen.error is not None for one in served)}"
                " failed")  # fmt: skip


def _fleet(url: str) -> Mapping[str, Any]:
    with urllib.request.urlopen(f"{url}/decisions?limit=1", timeout=30.0) as answer:
        fleet: Mapping[str, Any] = json.load(answer)["fleet"]
    return fleet


def _link_rate(fleet: Mapping[str, Any]) -> float | None:
    rates = [link["link"]["bytes_per_s"] for link in fleet.get("links", ())]
    known = [rate for rate in rates if rate is not None]
    return sum(known) / len(known) if known else None


def _learnt(fleet: Mapping[str, Any]) -> tuple[StepCost, ...]:
    costs = [replica["view"]["cost"] for replica in fleet["replicas"]]
    return tuple(msgspec.convert(cost, StepCost, strict=False) for cost in costs)
