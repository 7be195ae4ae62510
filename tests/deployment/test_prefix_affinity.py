"""Conversations go back to the replica that holds them, over three processes with the fake engine."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

BLOCK = 16
TURNS = 3


def ids(count: int, seed: int) -> list[int]:
    return [1000 + (seed * 6151 + i * 86028) % 40000 for i in range(count)]


def test_each_turn_finds_the_one_before(start: Any, tiny_model: Any) -> None:
    """Three conversations begin at once, so each replica gets one; their later turns come in the other order."""
    with start(tiny_model, "--mixed", "3", "--engine", "fake") as server:

        def turn(tokens: list[int]) -> tuple[str, int, int]:
            answer = server.post("/v1/completions", {"prompt": tokens, "max_tokens": 4, "ignore_eos": True})
            assert answer.status_code == 200, answer.text
            cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
            said = int(answer.headers.get("x-phaseserve-predicted-cached-tokens", 0))
            return answer.headers["x-phaseserve-replica"], cached, said

        talks = [ids(200, seed) for seed in range(3)]
        with ThreadPoolExecutor(3) as pool:
            first = list(pool.map(turn, talks))
        homes = [replica_id for replica_id, _, _ in first]
        assert sorted(homes) == ["r0", "r1", "r2"]
        for number in range(1, TURNS):
            time.sleep(0.4)  # some heartbeats: what is cached is known
            for index in reversed(range(3)):
                known = len(talks[index]) // BLOCK * BLOCK
                talks[index] += ids(40, 10 * number + index)
                assert turn(talks[index]) == (homes[index], known, known)
