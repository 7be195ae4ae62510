"""A sequence's tokens depend on itself alone: not on the batch, its order, broken neighbours, or where it runs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.batch import SequenceStart
from contracts.errors import EngineFailure
from contracts.request import SamplingParams
from engine.sampling.sampler import NOT_FINITE, Sampler

VOCAB = 130
STEPS = 5

_params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.4, 1.0, 1.7]),
    top_p=st.sampled_from([1.0, 0.9, 0.3]),
    top_k=st.sampled_from([0, 1, 20]),
    min_p=st.sampled_from([0.0, 0.05]),
    repetition_penalty=st.sampled_from([1.0, 1.2]),
    presence_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([{}, {3: -100.0, 4: 2.0}]),
    seed=st.sampled_from([None, 0, 1, -5, 2**70]),
    logprobs=st.sampled_from([None, 2]),
    min_tokens=st.sampled_from([0, 3]),
    stop_token_ids=st.sampled_from([(), (4, 5)]),
)


def _start(index: int, params: SamplingParams, output: tuple[int, ...] = ()) -> SequenceStart:
    return SequenceStart(f"sequence-{index}", (1, 2, 3 + index), params, output)


def _row(index: int, step: int) -> torch.Tensor:
    return torch.randn(VOCAB, generator=torch.Generator().manual_seed(1000 * index + step)) * 3


def _alone(index: int, params: SamplingParams) -> list[int]:
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    sampler.start(_start(index, params))
    return [sampler.sample([f"sequence-{index}"], _row(index, step)[None]).tokens[0].token_id for step in range(STEPS)]


@settings(deadline=None, max_examples=30)
@given(every=st.lists(_params, min_size=1, max_size=6), data=st.data())
def test_tokens_do_not_depend_on_the_batch(every: list[SamplingParams], data: st.DataObject) -> None:
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    outputs: dict[int, list[int]] = {index: [] for index in range(len(every))}
    for index, params in enumerate(every):
        sampler.start(_start(index, params))
    while unfinished := [index for index, output in outputs.items() if len(output) < STEPS]:
        chosen = data.draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True))
        logits = torch.stack([_row(index, len(outputs[index])) for index in chosen])
        for index, token in zip(chosen, sampler.sample([f"sequence-{i}" for i in chosen], logits).tokens, strict=True):
            assert token.sequence_id == f"sequence-{index}"
            outputs[index].append(token.token_id)
    assert outputs == {index: _alone(index, params) for index, params in enumerate(every)}


@settings(deadline=None, max_examples=60)
@given(params=_params, moved_after=st.integers(0, STEPS - 1))
def test_a_sequence_that_moves_goes_on_as_if_it_had_stayed(params: SamplingParams, moved_after: int) -> None:
    expected = _alone(0, params)
    elsewhere = Sampler(VOCAB, (2,), default_seed=11)
    elsewhere.start(_start(0, params, tuple(expected[:moved_after])))
    for step in range(moved_after, STEPS):
        assert elsewhere.sample(["sequence-0"], _row(0, step)[None]).tokens[0].token_id == expected[step]


def test_the_seed_decides_and_without_one_the_sequence_id_does() -> None:
    flat = torch.zeros(1, VOCAB)

    def output(name: str, seed: int | None, default_seed: int = 0) -> list[int]:
        sampler = Sampler(VOCAB, (), default_seed)
        sampler.start(SequenceStart(name, (1,), SamplingParams(seed=seed)))
        return [sampler.sample([name], flat).tokens[0].token_id for _ in range(20)]

    assert output("a", 5) == output("b", 5, default_seed=1)
    assert output("a", None) == output("a", None)
    different = [output("a", 5), output("a", 6), output("a", None), output("b", None), output("a", None, 1)]
    assert len({tuple(tokens) for tokens in different}) == 5


@pytest.mark.parametrize("params", [SamplingParams(temperature=0.0), SamplingParams(top_p=0.9, seed=3, logprobs=1)])
def test_broken_rows_fail_alone_and_leave_no_trace(params: SamplingParams) -> None:
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    names = [f"sequence-{index}" for index in range(5)]
    for index in range(5):
        sampler.start(_start(index, params))
    logits = torch.stack([_row(index, 0) for index in range(5)])
    logits[0, 77] = torch.nan
    logits[2] = -torch.inf
    logits[3, 0] = torch.inf
    result = sampler.sample(names, logits)
    assert result.failed == tuple((names[index], NOT_FINITE) for index in (0, 2, 3))
    assert [token.sequence_id for token in result.tokens] == [names[1], names[4]]
    assert [token.token_id for token in result.tokens] == [_alone(index, params)[0] for index in (1, 4)]
    retried = sampler.sample([names[0]], _row(0, 0)[None])
    assert [token.token_id for token in retried.tokens] == _alone(0, params)[:1]


def test_start_and_end_are_idempotent() -> None:
    params = SamplingParams(seed=4, repetition_penalty=1.5)
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    tokens = []
    for step in range(STEPS):
        sampler.start(_start(0, params))
        tokens.append(sampler.sample(["sequence-0"], _row(0, step)[None]).tokens[0].token_id)
    assert tokens == _alone(0, params)
    sampler.end("sequence-0")
    sampler.end("sequence-0")
    assert len(sampler) == 0
    sampler.start(_start(0, params))
    assert sampler.sample(["sequence-0"], _row(0, 0)[None]).tokens[0].token_id == tokens[0]


def test_another_start_under_the_same_id_replaces() -> None:
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    sampler.start(_start(0, SamplingParams(temperature=0.0)))
    sampler.start(_start(0, SamplingParams(seed=4)))
    assert sampler.sample(["sequence-0"], _row(0, 0)[None]).tokens[0].token_id == _alone(0, SamplingParams(seed=4))[0]


def test_an_unknown_sequence_is_named_and_an_empty_batch_is_nothing() -> None:
    sampler = Sampler(VOCAB, (2,), default_seed=11)
    with pytest.raises(EngineFailure, match="sequence nobody was never started"):
        sampler.sample(["nobody"], torch.zeros(1, VOCAB))
    assert sampler.sample([], torch.zeros(0, VOCAB)).tokens == ()
