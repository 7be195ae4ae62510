"""The fake engine under a right scheduler: tokens that depend on the sequence alone, stops, logprobs, knobs."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.batch import Batch, Chunk, SequenceStart, TokenLogprobs
from contracts.engine import Engine
from contracts.errors import EngineFailure
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.fake import FakeEngine, fake_layout, fake_spec

SPEC = fake_spec(vocab_size=997, max_context=256)
EOS = SPEC.eos_token_ids[0]
PROMPT = tuple((37 * index + 5) % 990 + 3 for index in range(45))


def _engine(*, block_size: int = 8, **options: Any) -> FakeEngine:
    return FakeEngine(SPEC, fake_layout(SPEC, block_size=block_size), 64, **options)


def _start(name: str = "a", prompt: tuple[int, ...] = PROMPT, **params: Any) -> SequenceStart:
    return SequenceStart(name, prompt, SamplingParams(**{"temperature": 0.0, **params}))


def _batch(
    *chunks: Chunk, index: int = 0, started: tuple[SequenceStart, ...] = (), ended: tuple[str, ...] = ()
) -> Batch:
    return Batch(step_index=index, phase=Phase.MIXED, chunks=chunks, started=started, ended=ended)


def _generate(
    engine: FakeEngine, start: SequenceStart, count: int, cuts: list[int], table: tuple[int, ...]
) -> list[int]:
    """Prefill in chunks that end at `cuts` (and at the end of the prompt), then decode."""
    prompt = start.prompt_token_ids
    edges = [0, *sorted({cut for cut in cuts if 0 < cut < len(prompt)}), len(prompt)]
    for first, last in itertools.pairwise(edges):
        chunk = Chunk(start.sequence_id, prompt[first:last], first, table, samples=last == len(prompt))
        result = engine.step(_batch(chunk, started=(start,)))
    tokens = [result.sampled[0].token_id]
    while len(tokens) < count:
        chunk = Chunk(start.sequence_id, (tokens[-1],), len(prompt) + len(tokens) - 1, table, samples=True)
        tokens.append(engine.step(_batch(chunk)).sampled[0].token_id)
    return tokens


@settings(deadline=None, max_examples=40)
@given(
    prompt=st.lists(st.integers(0, 996), min_size=1, max_size=60).map(tuple),
    cuts=st.lists(st.integers(1, 59), max_size=8),
    block_size=st.sampled_from([1, 4, 16]),
    offset=st.integers(0, 9),
)
def test_output_depends_on_the_tokens_alone(
    prompt: tuple[int, ...], cuts: list[int], block_size: int, offset: int
) -> None:
    engine = FakeEngine(SPEC, fake_layout(SPEC, block_size=block_size), 128)
    start = _start(prompt=prompt)
    table = tuple(range(offset, offset + engine.kv_layout.blocks_for(len(prompt) + 8)))[::-1]
    assert _generate(engine, start, 8, cuts, table) == list(_engine().expected_output(start, 8))
    assert engine.faults == []


def test_it_is_an_engine_with_the_shape_it_was_given() -> None:
    engine: Engine = _engine()
    assert (engine.spec, engine.kv_layout, engine.num_blocks) == (SPEC, fake_layout(SPEC, block_size=8), 64)
    assert fake_spec().vocab_size == 49152


def test_different_sequences_in_one_batch_do_not_mix() -> None:
    starts = [_start(str(index), PROMPT[index:]) for index in range(4)]
    tables = [tuple(range(8 * index, 8 * index + 8)) for index in range(4)]
    engine = _engine()
    chunks = [Chunk(s.sequence_id, s.prompt_token_ids, 0, t, True) for s, t in zip(starts, tables, strict=True)]
    result = engine.step(_batch(*chunks, started=tuple(starts), index=7))
    assert result.step_index == 7
    assert [token.sequence_id for token in result.sampled] == ["0", "1", "2", "3"]
    assert [(token.token_id,) for token in result.sampled] == [engine.expected_output(start, 1) for start in starts]
    assert len(set(result.sampled)) == 4


def test_a_cached_prefix_need_not_be_computed_again() -> None:
    engine = _engine()
    first, second = _start("a"), _start("b", (*PROMPT[:32], 9, 9, 9))
    _generate(engine, first, 3, [], tuple(range(8)))
    shared = Chunk("b", (9, 9, 9), 32, (0, 1, 2, 3, 20), samples=True)
    token = engine.step(_batch(shared, started=(second,))).sampled[0].token_id
    assert (token,) == engine.expected_output(second, 1)
    assert engine.faults == []


def test_a_preempted_sequence_goes_on_elsewhere_as_if_it_had_stayed() -> None:
    expected = _engine().expected_output(_start(), 10)
    engine = _engine()
    moved = SequenceStart("a", PROMPT, SamplingParams(temperature=0.0), expected[:6])
    recomputed = Chunk("a", PROMPT + expected[:6], 0, tuple(range(7)), samples=True)
    assert engine.step(_batch(recomputed, started=(moved,))).sampled[0].token_id == expected[6]
    assert engine.expected_output(moved, 10) == expected


def test_eos_comes_about_as_often_as_asked_and_otherwise_never() -> None:
    prompts = [_start(prompt=(index, 5)) for index in range(2000)]
    often, never = _engine(eos_every=10), _engine()
    count = sum(often.expected_output(start, 1) == (EOS,) for start in prompts)
    assert 140 < count < 260  # 200 expected, standard deviation 13
    assert not any(EOS in never.expected_output(start, 5) for start in prompts[:200])


def test_min_tokens_bans_eos_and_stop_tokens_until_reached() -> None:
    always = _engine(eos_every=1)
    assert always.expected_output(_start(min_tokens=3), 5)[3:] == (EOS, EOS)
    assert EOS not in always.expected_output(_start(min_tokens=3), 3)
    narrow = _engine(token_ids=range(10, 12))
    output = narrow.expected_output(_start(min_tokens=20, stop_token_ids=(10,)), 40)
    assert set(output[:20]) == {11}
    assert 10 in output[20:]


def test_a_ban_of_everything_raises_by_name() -> None:
    with pytest.raises(EngineFailure, match="min_tokens bans"):
        _engine(token_ids=range(10, 11)).expected_output(_start(min_tokens=1, stop_token_ids=(10,)), 1)


def test_tokens_come_from_the_given_range() -> None:
    assert set(_engine(token_ids=range(50, 54)).expected_output(_start(), 60)) == {50, 51, 52, 53}


@pytest.mark.parametrize("cuts", [[], [1], [7, 20, 21], list(range(1, 45))])
def test_logprobs_are_valid_and_do_not_depend_on_the_chunking(cuts: list[int]) -> None:
    start = _start(logprobs=3, prompt_logprobs=2)
    edges = [0, *cuts, len(PROMPT)]
    engine = _engine()
    reported = []
    entries: list[TokenLogprobs] = []
    for first, last in itertools.pairwise(edges):
        chunk = Chunk("a", PROMPT[first:last], first, tuple(range(8)), last == len(PROMPT), prompt_logprobs=True)
        result = engine.step(_batch(chunk, started=(start,)))
        reported += list(result.prompt_logprobs)
        entries += [entry for part in result.prompt_logprobs for entry in part.entries]
    assert [part.first for part in reported] == [edge + 1 for edge in edges[:-1]]
    assert [entry.token_id for entry in entries] == list(PROMPT[1:])
    whole = _engine().step(_batch(Chunk("a", PROMPT, 0, tuple(range(8)), True, prompt_logprobs=True), started=(start,)))
    assert tuple(entries) == whole.prompt_logprobs[0].entries
    sampled = result.sampled[0].logprobs
    assert sampled is not None
    assert sampled.token_id == result.sampled[0].token_id
    for entry, count in ((sampled, 3), (entries[0], 2)):
        logprobs = [logprob for _, logprob in entry.top]
        assert len(entry.top) == count
        assert entry.top[0] == (entry.token_id, entry.logprob)
        assert logprobs == sorted(logprobs, reverse=True)
        assert max(logprobs) < 0


def test_a_step_takes_the_time_of_the_cost_model_and_a_stall_adds_to_the_next_one() -> None:
    slept: list[float] = []
    engine = _engine(step_seconds=lambda batch: 0.01 * batch.num_tokens, sleep=slept.append)
    engine.stall(3.0)
    _generate(engine, _start(), 2, [40], tuple(range(8)))
    assert slept == pytest.approx([3.4, 0.05, 0.01])


def test_a_failing_step_raises_by_name_until_told_otherwise() -> None:
    engine = _engine()
    batch = _batch(Chunk("a", PROMPT, 0, tuple(range(8)), True), index=4, started=(_start(),))
    engine.fail_on(lambda batch: batch.step_index == 4)
    with pytest.raises(EngineFailure, match="step 4 failed on demand"):
        engine.step(batch)
    engine.fail_on(None)
    assert len(engine.step(batch).sampled) == 1


def test_failing_rows_fail_alone() -> None:
    engine = _engine()
    engine.fail_rows_on(lambda chunk: chunk.sequence_id == "a")
    chunks = (Chunk("a", PROMPT, 0, tuple(range(6)), True), Chunk("b", PROMPT, 0, tuple(range(8, 14)), True))
    result = engine.step(_batch(*chunks, started=(_start("a"), _start("b"))))
    assert [token.sequence_id for token in result.sampled] == ["b"]
    assert result.failed == (("a", "failed on demand"),)


def test_nothing_is_left_after_the_end() -> None:
    engine = _engine()
    _generate(engine, _start(), 2, [], tuple(range(8)))
    assert engine.num_sequences == 1
    engine.step(_batch(ended=("a", "a", "unknown")))
    assert engine.num_sequences == 0
    engine.close()
    engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        engine.step(_batch())
