"""The prefix cache inside the core: what is shared, when, and what never is."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Role
from contracts.replica_io import ClientGone
from contracts.request import SamplingParams
from scheduling.config import ReplicaCoreConfig

Lab = Any
PROMPT = tuple(range(3, 35))  # 8 blocks of 4


def computed(lab: Lab, request_id: str) -> int:
    """Prompt tokens that were computed for the request."""
    length = len(lab.requests[request_id].prompt_token_ids)
    return sum(len(chunk.token_ids) for chunk in lab.chunks_of(request_id) if chunk.start < length)


@pytest.mark.parametrize(("length", "cached"), [(32, 28), (31, 28), (33, 32), (3, 0), (4, 0), (5, 4)])
def test_a_repeated_prompt_takes_all_but_its_last_token_or_block(replica_lab: Lab, length: int, cached: int) -> None:
    """PFX-3: of a prompt of exactly k blocks the last block is computed again; the chain stays intact."""
    lab = replica_lab()
    prompt = (*PROMPT, 35, 36)[:length]
    for name in "abc":
        record = lab.arrive(name, prompt)
        lab.run()
        assert record.usage.cached_tokens == (0 if name == "a" else cached)
    longer = lab.arrive("longer", (*prompt, 60))
    lab.finish()
    assert longer.usage.cached_tokens == length // 4 * 4
    assert lab.core.state.counters.prefix_hit_tokens == 2 * cached + length // 4 * 4


def test_output_is_shared_with_the_next_turn(replica_lab: Lab) -> None:
    lab = replica_lab()
    first = lab.arrive("a", PROMPT, 9)
    lab.run()
    second = lab.arrive("b", (*PROMPT, *first.tokens, 5, 6, 7))
    lab.finish()
    assert second.usage.cached_tokens == 40  # 32 and the 8 output tokens that were fed back


@pytest.mark.parametrize("chunk", [32, 24, 8])
@pytest.mark.parametrize("role", [Role.ALTERNATING, Role.MIXED])
def test_simultaneous_equal_prompts_prefill_once(replica_lab: Lab, role: Role, chunk: int) -> None:
    lab = replica_lab(role, config=ReplicaCoreConfig(max_chunk=chunk, min_chunk=1, overdue_after=0.001))
    for index in range(5):
        lab.arrive(f"r{index}", PROMPT)
    lab.finish()
    assert computed(lab, "r0") == 32
    assert [computed(lab, f"r{index}") for index in range(1, 5)] == [4] * 4


def test_who_is_waited_for_inherits_the_turn(replica_lab: Lab) -> None:
    """A prompt of high priority needs blocks that a low one computes: the low one runs before those in between."""
    lab = replica_lab(config=ReplicaCoreConfig(max_chunk=8, min_chunk=1, chunk_multiple=1))
    lab.arrive("low", PROMPT, priority=0)
    lab.arrive("middle", 60, priority=1)
    lab.arrive("high", PROMPT, priority=2)
    lab.step()
    for _ in range(3):
        assert [chunk.sequence_id for chunk in lab.in_flight.chunks] == ["low"]
        lab.step()
    lab.finish()
    assert computed(lab, "high") == 4


def test_when_the_one_computing_is_cancelled_another_takes_over(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(max_chunk=8, min_chunk=1, chunk_multiple=1))
    for name in "abc":
        lab.arrive(name, PROMPT)
    lab.step()
    assert {chunk.sequence_id for _, batch in lab.batches for chunk in batch.chunks} == {"a"}
    lab.send(ClientGone("a"))
    lab.finish()
    assert computed(lab, "b") == 32 - 8  # the first chunk of "a" was complete and is shared
    assert computed(lab, "c") == 4


def test_a_hit_is_looked_up_when_it_runs_not_when_it_is_queued(replica_lab: Lab) -> None:
    """PFX-4: what was cached on arrival is evicted before the prompt runs."""
    lab = replica_lab(num_blocks=24, config=ReplicaCoreConfig(max_running=1))
    lab.arrive("a", PROMPT, 2)
    lab.run()
    lab.arrive("first", 3, 2)
    lab.arrive("evictor", tuple(40 + i % 20 for i in range(80)), 12)
    record = lab.arrive("again", PROMPT, 2)
    assert lab.core.state.sequences["again"].cached_guess == 28
    lab.finish()  # checks the tokens
    assert record.usage.cached_tokens < 28


def test_a_running_prompt_pins_what_it_shares(replica_lab: Lab) -> None:
    lab = replica_lab(num_blocks=24)
    lab.arrive("a", PROMPT, 2)
    lab.run()
    lab.arrive("holder", (*PROMPT, 40, 41), 20)
    lab.step()
    held = set(lab.core.state.sequences["holder"].blocks)
    lab.arrive("evictor", tuple(40 + i % 20 for i in range(30)), 8)
    for _ in range(6):
        lab.step()
        assert not held & set(lab.core.state.sequences["evictor"].blocks)
    lab.finish()


def test_prompt_logprobs_need_every_row_and_skip_the_lookup(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(max_chunk=7, min_chunk=1, chunk_multiple=1))
    lab.arrive("a", PROMPT)
    lab.run()
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0)
    record = lab.arrive("b", PROMPT, sampling=sampling)
    lab.finish()
    assert record.usage.cached_tokens == 0
    assert sorted(record.prompt_logprobs) == list(range(1, 32))
    assert [entry.token_id for _, entry in sorted(record.prompt_logprobs.items())] == list(PROMPT[1:])


@pytest.mark.parametrize("how", ["step", "row", "cancel"])
def test_blocks_of_a_failed_or_cancelled_step_never_enter_the_cache(replica_lab: Lab, how: str) -> None:
    lab = replica_lab()
    lab.arrive("a", PROMPT)
    if how == "step":
        lab.engine.fail_on(lambda _: True)
    elif how == "row":
        lab.engine.fail_rows_on(lambda _: True)
    else:
        lab.send(ClientGone("a"))
    lab.step()
    lab.engine.fail_on(None)
    lab.engine.fail_rows_on(None)
    record = lab.arrive("b", PROMPT)
    lab.finish()
    assert record.usage.cached_tokens == 0


def test_the_cache_can_be_switched_off(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(prefix_cache=False))
    for name in "ab":
        record = lab.arrive(name, PROMPT)
        lab.run()
    lab.finish()
    assert record.usage.cached_tokens == 0
