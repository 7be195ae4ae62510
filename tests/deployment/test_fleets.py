"""Two replicas answer what one answers: greedy text is the same in every fleet, also with many requests at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = pytest.mark.system

FLEETS = {"two alternating": ("--alternating", "2"), "one of each": ("--alternating", "1", "--mixed", "1")}
LENGTHS = (1, 15, 16, 17, 100, 255, 512, 900)


@pytest.mark.parametrize("words", FLEETS.values(), ids=FLEETS.keys())
def test_the_same_text_from_two_replicas(start: Any, tiny_model: Any, oracle: Any, words: tuple[str, ...]) -> None:
    prompts = [[1000 + (length * 7907 + i * 15485) % 40000 for i in range(length)] for length in LENGTHS]
    want = [oracle.text(prompt, max_tokens=24, ignore_eos=True) for prompt in prompts]
    with start(tiny_model, *words, "--set", "scheduling.max_chunk=64") as server:
        with ThreadPoolExecutor(16) as pool:
            twice = [*prompts, *prompts]
            got = list(pool.map(lambda prompt: server.text(prompt, max_tokens=24, ignore_eos=True), twice))
        assert got == want + want
        used = {decision["plan"]["replica_id"] for decision in server.decisions()}
        assert used == {"r0", "r1"}
        assert server.gauge("phaseserve_replica_running") == 0
