"""Invariant 3 across a move: streams of a replica that is to prefill go on at another, every text as if it had stayed.

Fourteen requests at once (greedy, seeded, n = 2, stop strings, log probabilities, penalties) over three mixed replicas
of which one becomes a decode and one a prefill replica in the middle of them.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

ROLES = {"m0": Role.MIXED, "m1": Role.MIXED, "m2": Role.MIXED}
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 2},
    {"temperature": 0.9, "seed": 11},
    {"temperature": 1.0, "seed": 5, "n": 2},
    {"frequency_penalty": 0.5, "temperature": 0.7, "seed": 2},
    {"repetition_penalty": 1.2, "presence_penalty": 0.4},
    {"stop": ""},
)
FIELDS = {"temperature": 0, "ignore_eos": True, "max_tokens": 1200}
ROUTER = ("cluster.planner.enabled=true", "cluster.planner.every_s=1000000.0", "slo.tpot_s=1.0", "slo.ttft_s=10.0")
"""The planner only moves streams, whose targets are generous: roles change when they are told to."""


def bodies(prompts: Any) -> list[dict[str, Any]]:
    """Long outputs, so that whoever changes has streams."""
    lengths = (1, 17, 40, 64, 100, 128, 150, 16, 15, 33, 200, 48, 7, 300)
    return [{"prompt": prompts(n, 9), **FIELDS, **KINDS[i % len(KINDS)]} for i, n in enumerate(lengths)]


def give(front: Any, name: str, role: Role) -> None:
    told = httpx.post(f"{front.fleet.url}/fleet/replicas/{name}/role", json={"role": role.value}, timeout=10)
    assert told.status_code == 202, told.text


def all_stream(front: Any) -> bool:
    views = front.views().values()
    return sum(view["running"] for view in views) >= 8 and not any(view["waiting"] for view in views)


def change(front: Any) -> None:
    """Who has most streams is to prefill, who has fewest to decode."""
    running = {name: view["running"] for name, view in front.views().items()}
    give(front, min(running, key=running.__getitem__), Role.DECODE)
    give(front, max(running, key=running.__getitem__), Role.PREFILL)


def moved(front: Any) -> int:
    count: int = front.fleet.get("/decisions?limit=1")["fleet"]["counters"]["moved"]
    return count


@pytest.fixture(scope="module")
def asked(oracle: Any, asked_of: Any, prompts: Any) -> Any:
    """The requests, and what one replica answers to each when it is alone."""
    return asked_of(oracle, bodies(prompts), {"layout": "auto"})


@pytest.mark.parametrize("transport", ["cma", "tcp", "ucx", "nixl"])
def test_the_text_goes_on(start_fleet: Any, tiny_model: Path, asked: Any, prompts: Any, transport: str) -> None:
    settings = {"roles_may_change": True, "router_settings": ROUTER, "transfer": {"transport": transport}}
    with start_fleet(str(tiny_model), ROLES, **settings) as front:
        front.answers([{**FIELDS, "prompt": prompts(9, salt)} for salt in range(20, 28)], 8)  # so long are outputs here
        with ThreadPoolExecutor(16) as pool:
            running = [pool.submit(front.answer, body) for body in asked.bodies]
            front.wait(lambda: all_stream(front))
            change(front)
            answers = [answer.result(240) for answer in running]
        asked.same(answers)
        assert {answer["usage"]["prompt_tokens_details"]["cached_tokens"] for answer in answers} == {0}
        assert moved(front) > 2
        told = [d for d in front.fleet.get("/fleet/decisions")["decisions"] if d["kind"] == "streams_moved"]
        assert sum(decision["numbers"]["streams"] for decision in told) == moved(front)
        assert front.metric("phaseserve_continuations_total") == moved(front)
        layouts = [decision["plan"]["layout"] for decision in front.decisions(len(bodies(prompts)))]
        assert layouts.count("disaggregated") == moved(front)
        front.wait_nothing_left()
        assert all(view["guarded"] == 0 for view in front.views().values())
        asked.same(front.answers(asked.bodies, 14))
