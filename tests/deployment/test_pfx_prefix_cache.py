"""Field bugs PFX: what is cached never changes what is answered (vllm #14069, #11186, #17305, and their kind)."""

from __future__ import annotations

import threading
from typing import Any

import pytest

pytestmark = pytest.mark.system

BLOCK = 16


def ids(count: int, seed: int) -> list[int]:
    return [1000 + (seed * 6151 + i * 86028) % 40000 for i in range(count)]


def cached_tokens(answer: dict[str, Any]) -> int:
    count: int = answer["usage"]["prompt_tokens_details"]["cached_tokens"]
    return count


def test_cold_warm_and_extended_prompts_answer_the_same(chunked: Any, oracle: Any) -> None:
    for count in (1, BLOCK - 1, BLOCK, BLOCK + 1, 100, 7 * BLOCK, 333):
        prompt = ids(count, seed=count)
        longer = [*prompt, *ids(21, seed=5)]
        want, want_longer = oracle.text(prompt, max_tokens=16), oracle.text(longer, max_tokens=16)
        assert [chunked.text(prompt, max_tokens=16) for _ in range(3)] == [want] * 3
        assert [chunked.text(longer, max_tokens=16) for _ in range(2)] == [want_longer] * 2


@pytest.mark.parametrize("blocks", [1, 2, 8])
def test_a_fully_cached_prompt_of_whole_blocks(chunked: Any, oracle: Any, blocks: int) -> None:
    """At least one token is always computed, and the chain of hashes goes on."""
    prompt = ids(blocks * BLOCK, seed=70 + blocks)
    answers = [chunked.completion(prompt, max_tokens=4) for _ in range(3)]
    assert {a["choices"][0]["text"] for a in answers} == {oracle.text(prompt, max_tokens=4)}
    assert cached_tokens(answers[0]) == 0
    assert cached_tokens(answers[1]) in ((blocks - 1) * BLOCK, blocks * BLOCK - 1)
    following = chunked.completion([*prompt, 1234], max_tokens=4)
    assert cached_tokens(following) == blocks * BLOCK
    assert following["choices"][0]["text"] == oracle.text([*prompt, 1234], max_tokens=4)


def test_a_prefix_evicted_between_queueing_and_running(start: Any, tiny_model: Any, oracle: Any) -> None:
    """The hit is looked up when the prompt runs, not when it was queued behind twenty that evict it."""
    words = ("--alternating", "1", "--set", "engine.num_blocks=48", "--set", "scheduling.max_running=2")
    shared = ids(200, seed=1)
    prompts = [[*ids(300, seed=100 + i)] for i in range(20)] + [[*shared, *ids(30, seed=2)]]
    with start(tiny_model, *words) as server:
        assert server.text(shared, max_tokens=4) == oracle.text(shared, max_tokens=4)
        texts: dict[int, str] = {}

        def ask(index: int) -> None:
            texts[index] = server.text(prompts[index], max_tokens=4)

        threads = [threading.Thread(target=ask, args=(index,)) for index in range(len(prompts))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert texts[20] == oracle.text(prompts[20], max_tokens=4)
        assert texts[0] == oracle.text(prompts[0], max_tokens=4)
        assert len(texts) == 21
