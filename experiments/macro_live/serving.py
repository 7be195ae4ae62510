"""One `phaseserve up` for a layout, and one point measured on it."""

from __future__ import annotations

import asyncio
import json
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from contracts.request import Slo
from experiments.bandwidth_sweep.measure import ALL_DECISIONS, send_all, wait_idle
from experiments.bandwidth_sweep.seen import seen_of
from experiments.bandwidth_sweep.workload import prompt_ids
from experiments.engine_bench.server import free_port
from experiments.load.client import Job, Target
from experiments.macro_live.figures import Served
from experiments.macro_live.workload import Ask
from experiments.router_bench.stack import answers, process_of

LAYOUTS = {
    "alternating": ("--alternating", "2"),
    "mixed": ("--mixed", "2"),
    "1p1d": ("--prefill", "1", "--decode", "1"),
    "auto": ("--alternating", "2", "--auto-roles"),
}
MODEL = "smollm2-135m"
READY_S = 180.0
GRACE_S = 5.0
WARM_UP_TOKENS = 128
NUM_WARM_UPS = 4


class LiveError(Exception):
    """A fleet did not come up. The message names its log."""


class Setup(msgspec.Struct, frozen=True, kw_only=True):
    """What all layouts have in common. `settings` are assignments as for `phaseserve up --set`."""

    engine: str
    quantization: str
    slo: Slo
    settings: tuple[str, ...] = ()

    def words(self, layout: str, port: int) -> list[str]:
        """The command line of the fleet, after the interpreter."""
        settings = [f"slo.ttft_s={self.slo.ttft_s}", f"slo.tpot_s={self.slo.tpot_s}", *self.settings]
        if self.engine == "torch":
            settings.append(f"engine.quantization={self.quantization}")
        words = ["-m", "cli", "up", *LAYOUTS[layout], "--engine", self.engine, "--port", str(port)]
        return words + [word for setting in settings for word in ("--set", setting)]


@contextmanager
def serving(setup: Setup, layout: str, logs: Path) -> Iterator[str]:
    """A fleet of this layout, warm, for the time of a `with`. Yields its URL. Raises `LiveError`."""
    port = free_port()
    url, log = f"http://127.0.0.1:{port}", logs / f"{layout}.log"
    with process_of(setup.words(layout, port), log, python=sys.executable) as process:
        deadline = time.monotonic() + READY_S
        while not (answers(f"{url}/health/ready") and len(_get(url, "/fleet")["replicas"]) == 2):
            if process.poll() is not None or time.monotonic() > deadline:
                raise LiveError(f"{layout} did not become ready:\n{log.read_text()[-2000:]}")
            time.sleep(0.1)
        for number in range(NUM_WARM_UPS):
            name = f"warm-up-{number}"
            job = Job(0.0, prompt_ids(WARM_UP_TOKENS, name), 4, name)
            asyncio.run(send_all(Target(url, MODEL), [job], READY_S))
        yield url


def measured(url: str, asked: Sequence[Ask], label: str) -> list[Served]:
    """All requests at their times; what has not ended some seconds after the last arrival is given up. Raises
    `SweepError` when the fleet does not become idle afterwards."""
    jobs = [
        Job(one.at_s, prompt_ids(one.prompt_tokens, f"{label}-{i}"), one.output_tokens, f"{label}-{i}", one.key)
        for i, one in enumerate(asked)
    ]
    samples = asyncio.run(send_all(Target(url, MODEL), jobs, asked[-1].at_s + GRACE_S))
    wait_idle(lambda: _get(url, "/decisions?limit=1")["fleet"])
    decisions = _get(url, f"/decisions?limit={ALL_DECISIONS}")["decisions"]
    shown: Mapping[str, Any] = {decision["request_id"]: decision for decision in decisions}
    return [
        Served(
            at_s=one.at_s,
            key=one.key,
            max_gap_s=sample.max_gap_s,
            seen=seen_of(shown.get(f"cmpl-{job.request_id}"), sample.error),
        )
        for one, job, sample in zip(asked, jobs, samples, strict=True)
    ]


def _get(url: str, path: str) -> Any:
    with urllib.request.urlopen(f"{url}{path}", timeout=30.0) as answer:
        return json.load(answer)
