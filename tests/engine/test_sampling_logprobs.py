"""Log probabilities: the softmax of the raw logits, whatever the request does to them for sampling."""

from __future__ import annotations

import pytest
import torch

from contracts.batch import SequenceStart, TokenLogprobs
from contracts.errors import EngineFailure
from contracts.request import SamplingParams
from engine.sampling.logprobs import FLOOR
from engine.sampling.sampler import Sampler

VOCAB = 300
LOGITS = torch.randn(6, VOCAB, generator=torch.Generator().manual_seed(3)) * 4
LOGPROBS = LOGITS.double().log_softmax(dim=-1)


def _sampler(*params: SamplingParams) -> Sampler:
    sampler = Sampler(VOCAB, (2,), default_seed=0)
    for index, each in enumerate(params):
        sampler.start(SequenceStart(str(index), (5, 6, 7), each))
    return sampler


def _reported(sampler: Sampler, logits: torch.Tensor) -> list[TokenLogprobs | None]:
    result = sampler.sample([str(index) for index in range(len(logits))], logits)
    assert all(token.logprobs is None or token.logprobs.token_id == token.token_id for token in result.tokens)
    return [token.logprobs for token in result.tokens]


def test_they_are_those_of_the_raw_logits_and_only_where_asked_for() -> None:
    adjusting = {"repetition_penalty": 1.7, "logit_bias": {9: 4.0}, "presence_penalty": 1.0, "min_tokens": 5}
    reported = _reported(
        _sampler(
            SamplingParams(temperature=0.0, logprobs=0),
            SamplingParams(temperature=0.0),
            SamplingParams(temperature=2.5, top_k=40, logprobs=3),
            SamplingParams(temperature=0.0, logprobs=20, **adjusting),  # type: ignore[arg-type]
        ),
        LOGITS[:4],
    )
    assert reported[1] is None
    for row, count in ((0, 0), (2, 3), (3, 20)):
        entry = reported[row]
        assert entry is not None
        assert entry.logprob == pytest.approx(LOGPROBS[row, entry.token_id].item(), abs=1e-5)
        values, ids = LOGPROBS[row].topk(count)
        assert [token_id for token_id, _ in entry.top] == ids.tolist()
        assert [logprob for _, logprob in entry.top] == pytest.approx(values.tolist(), abs=1e-5)


def test_ties_are_sorted_by_id() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 150] = logits[0, 20] = logits[0, 280] = 3.0
    entry = _reported(_sampler(SamplingParams(temperature=0.0, logprobs=2)), logits)[0]
    assert entry is not None
    assert [token_id for token_id, _ in entry.top] == [20, 150]
    entry = _reported(_sampler(SamplingParams(temperature=0.0, logprobs=5)), logits)[0]
    assert entry is not None
    assert [token_id for token_id, _ in entry.top] == [20, 150, 280, 0, 1]


def test_more_alternatives_than_tokens_are_all_of_them() -> None:
    sampler = Sampler(3, (), default_seed=0)
    sampler.start(SequenceStart("0", (), SamplingParams(temperature=0.0, logprobs=20)))
    entry = _reported(sampler, torch.tensor([[0.0, 2.0, 1.0]]))[0]
    assert entry is not None
    assert [token_id for token_id, _ in entry.top] == [1, 2, 0]


def test_impossible_tokens_have_a_finite_floor() -> None:
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 8] = 1.0
    entry = _reported(_sampler(SamplingParams(temperature=0.0, logprobs=2)), logits)[0]
    assert entry == TokenLogprobs(8, 0.0, ((8, 0.0), (0, FLOOR)))


def test_prompt_logprobs_report_the_given_tokens() -> None:
    sampler = _sampler(SamplingParams(temperature=0.0, prompt_logprobs=4))
    targets = [0, 299, 17, 4, 4, 130]
    reported = sampler.prompt_logprobs("0", 64, LOGITS, targets, 4)
    assert (reported.sequence_id, reported.first) == ("0", 64)
    for row, (target, entry) in enumerate(zip(targets, reported.entries, strict=True)):
        assert entry.token_id == target
        assert entry.logprob == pytest.approx(LOGPROBS[row, target].item(), abs=1e-5)
        assert [token_id for token_id, _ in entry.top] == LOGPROBS[row].topk(4).indices.tolist()


def test_prompt_logprobs_of_no_rows_are_empty() -> None:
    assert _sampler().prompt_logprobs("0", 1, LOGITS[:0], [], 4).entries == ()


def test_prompt_logprobs_of_broken_rows_raise_by_name() -> None:
    broken = LOGITS.clone()
    broken[2, 7] = torch.nan
    with pytest.raises(EngineFailure, match=r"not finite \(sequence 0, prompt tokens from 9\)"):
        _sampler().prompt_logprobs("0", 9, broken, [1] * 6, 0)
