"""Invariant 3 across the death of a replica: whoever dies mid-stream, every text goes on as if nobody had.

Sixteen requests at once (greedy, seeded, n = 2, stop strings, log probabilities) over two and two replicas; one is
killed while tokens of all of them are still to come.
"""

from __future__ import annotations

import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.slow, pytest.mark.timeout(400)]

ROLES = {"p0": Role.PREFILL, "p1": Role.PREFILL, "d0": Role.DECODE, "d1": Role.DECODE}
OWN = {"p0": {"core": {"max_waiting": 4}}, "p1": {"core": {"max_waiting": 4}},
       "d0": {"core": {"max_running": 12}}, "d1": {"core": {"max_running": 12}}}  # fmt: skip
CORE = {"admission": "sarathi(64)", "min_chunk": 16, "max_chunk": 16}
KINDS: tuple[dict[str, Any], ...] = (
    {},
    {"logprobs": 2},
    {"temperature": 0.9, "seed": 11},
    {"temperature": 1.0, "seed": 5, "n": 2},
    {"frequency_penalty": 0.5, "temperature": 0.7, "seed": 2},
)


def bodies(prompts: Any) -> list[dict[str, Any]]:
    """Long outputs, so that whoever dies has streams."""
    lengths = (1, 17, 40, 64, 100, 128, 150, 200, 256, 300, 400, 512, 640, 800, 1000, 1200)
    fields = {"temperature": 0, "ignore_eos": True, "max_tokens": 700}
    return [{"prompt": prompts(n, 7), **fields, **KINDS[i % len(KINDS)]} for i, n in enumerate(lengths)]


@pytest.mark.parametrize("transport", ["cma", "tcp", "ucx", "nixl"])
@pytest.mark.parametrize("role", ["prefill", "decode"])
def test_the_text_goes_on(
    start_fleet: Any, tiny_model: Path, oracle: Any, asked_of: Any, prompts: Any, transport: str, role: str
) -> None:
    asked = asked_of(oracle, bodies(prompts), {"layout": "auto"})
    wish = {"layout": "disaggregated", "on_unavailable": "colocate"}
    wished = [{**body, "phaseserve": wish} for body in asked.bodies]
    with start_fleet(str(tiny_model), ROLES, own=OWN, core=CORE, transfer={"transport": transport}) as front:
        with ThreadPoolExecutor(16) as pool:
            running = [pool.submit(front.answer, body) for body in wished]
            deadline_s = time.monotonic() + 60
            while not (found := in_the_middle(front, role)):
                assert time.monotonic() < deadline_s
            victim = found[0]
            front.fleet.kill(victim, signal.SIGKILL)
            killed_s = time.monotonic()
            asked.same([answer.result(240) for answer in running])
        assert time.monotonic() - killed_s < 240
        front.wait(lambda: victim not in front.views())
        front.wait_nothing_left()
        assert front.metric("phaseserve_continuations_total") > 0 or role == "prefill"
        asked.same(front.answers(wished, 16))


def in_the_middle(front: Any, role: str) -> list[str]:
    """Prefill replicas that have prompts to compute or to send, or decode replicas with streams."""
    views = {name: view for name, view in front.views().items() if view["role"] == role}
    if role == "prefill":
        return [name for name, view in views.items() if view["waiting"] or view["running"] or view["sending"]]
    return [name for name, view in views.items() if view["running"] >= 3 and view["output_tokens_computed"] > 50]
