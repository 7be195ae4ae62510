"""`up --auto-roles`: a fleet of real processes that gives itself other roles while clients stream."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

COST = {"a0": 0.002, "a1": 0.00005, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.0002}
QUICK = ("--engine", "fake", *(word for k, v in COST.items() for word in ("--set", f"replica.fake.cost.{k}={v}")))
PLANNER = {"every_s": 0.5, "window_s": 3.0, "change_every_s": 0.3, "hold_s": 3.0}
SOON = tuple(word for k, v in PLANNER.items() for word in ("--set", f"cluster.planner.{k}={v}"))
WHOLE = {"mixed", "alternating"}


def test_pools_that_carry_too_little_become_whole_again_under_load(start: Any) -> None:
    """One decode replica holds about 9 streams within 4 ms a token; 16 clients want more, two whole ones carry it."""
    words = ("--prefill", "1", "--decode", "1", "--auto-roles", "--set", "slo.tpot_s=0.004", *QUICK, *SOON)
    with start(Path("smollm2-135m"), *words) as server:
        failures: list[str] = []
        stop = threading.Event()

        def ask(number: int) -> None:
            body = {"prompt": [1000 + number] * 20, "max_tokens": 40, "ignore_eos": True}
            while not stop.is_set():
                try:
                    answer = server.post("/v1/completions", body)
                    if answer.status_code != 200:
                        failures.append(answer.text)
                except httpx.HTTPError as error:
                    failures.append(repr(error))

        threads = [threading.Thread(target=ask, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        try:
            deadline = time.monotonic() + 45.0
            while True:
                shown = httpx.get(f"{server.url}/fleet", timeout=10).json()
                if {replica["role"] for replica in shown["replicas"]} <= WHOLE:
                    break
                assert time.monotonic() < deadline, shown
                time.sleep(0.2)
        finally:
            stop.set()
            for thread in threads:
                thread.join(60)
        assert failures == []
        decisions = httpx.get(f"{server.url}/fleet/decisions", timeout=10).json()["decisions"]
        told = next(decision for decision in decisions if decision["kind"] == "mix")
        assert "1 prefill + 1 decode carries" in told["reason"]
        assert told["numbers"]["would_carry_per_s"] > told["numbers"]["carries_per_s"]
        assert shown["planner"]["enabled"]
        assert server.gauge("phaseserve_planner_demand_per_second") > 0.0
