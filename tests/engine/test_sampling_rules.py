"""Greedy choice, penalties, logit bias and min_tokens, each against plain loops."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch

from contracts.batch import SequenceStart
from contracts.request import SamplingParams
from engine.sampling.sampler import NOTHING_LEFT, Sampler

EOS = 3


def _sampler(vocab_size: int, prompt: tuple[int, ...] = (), **params: Any) -> Sampler:
    sampler = Sampler(vocab_size, (EOS,), default_seed=0)
    sampler.start(SequenceStart("a", prompt, SamplingParams(**{"temperature": 0.0, **params})))
    return sampler


def _next(sampler: Sampler, row: list[float]) -> int:
    return sampler.sample(["a"], torch.tensor([row])).tokens[0].token_id


def test_greedy_takes_the_likeliest_and_the_lowest_id_of_a_tie() -> None:
    assert _next(_sampler(5), [0.0, 2.0, 1.0, 2.0, 2.0]) == 1
    assert _next(_sampler(5, temperature=1e-6), [0.0, 2.0, 1.0, 2.0, 2.0]) == 1
    wide = [0.0] * 50_000
    wide[31_000] = wide[49_999] = 1.0
    assert _next(_sampler(50_000), wide) == 31_000
    assert _next(_sampler(50_000, temperature=1.0, top_k=1), wide) == 31_000


@pytest.mark.parametrize("temperature", [0.0, 0.01])
@pytest.mark.parametrize(
    "params",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"presence_penalty": 0.9},
        {"frequency_penalty": 0.5},
        {"frequency_penalty": -0.3, "presence_penalty": 1.1, "repetition_penalty": 1.2},
        {"frequency_penalty": 0.4, "repetition_penalty": 1.5, "logit_bias": {2: 1.5, 4: -2.0, 11: 0.25}},
    ],
)
def test_penalties_follow_the_reference_over_a_whole_output(params: dict[str, Any], temperature: float) -> None:
    """100 tokens (more than the counts' first room), prompt tokens repeated among them."""
    vocab = 90
    prompt = (1, 2, 2, 5, 7)
    sampler = _sampler(vocab, prompt, temperature=temperature, **params)
    generator = torch.Generator().manual_seed(8)
    output: list[int] = []
    for _ in range(100):
        row = (torch.randn(vocab, generator=generator) * 2).tolist()
        expected = _adjusted(row, prompt, output, params)
        likeliest = max(range(vocab), key=lambda token_id: (expected[token_id], -token_id))
        runner_up = max(value for token_id, value in enumerate(expected) if token_id != likeliest)
        token = _next(sampler, row)
        if temperature == 0.0 or expected[likeliest] - runner_up > 0.2:
            assert token == likeliest
        output.append(token)
    assert max(Counter(output).values()) > 1


def _adjusted(row: list[float], prompt: tuple[int, ...], output: list[int], params: dict[str, Any]) -> list[float]:
    adjusted = []
    for token_id, logit in enumerate(row):
        value = logit + params.get("logit_bias", {}).get(token_id, 0.0)
        if token_id in prompt or token_id in output:
            factor = params.get("repetition_penalty", 1.0)
            value = value / factor if value > 0 else value * factor
        value -= params.get("frequency_penalty", 0.0) * output.count(token_id)
        value -= params.get("presence_penalty", 0.0) * (token_id in output)
        adjusted.append(value)
    return adjusted


def test_presence_and_frequency_do_not_count_the_prompt_but_repetition_does() -> None:
    row = [1.0, 1.1, 0.0]
    assert _next(_sampler(3, (1, 1, 1), presence_penalty=1.0, frequency_penalty=1.0), row) == 1
    assert _next(_sampler(3, (1,), repetition_penalty=1.5), row) == 0


def test_logit_bias_bans_and_forces() -> None:
    row = [1.0, 2.0, 0.0, 0.0]
    for temperature in (0.0, 1.0):
        assert _next(_sampler(4, temperature=temperature, logit_bias={2: 100.0}), row) == 2
        banned = _sampler(4, temperature=temperature, logit_bias={1: -100.0, 0: -100.0})
        assert {_next(banned, row) for _ in range(50)} <= {2, 3}


@pytest.mark.parametrize("token_id", [4, -1])
def test_logit_bias_outside_the_vocabulary_fails_the_row_by_name(token_id: int) -> None:
    result = _sampler(4, logit_bias={token_id: 1.0}).sample(["a"], torch.zeros(1, 4))
    assert result.tokens == ()
    assert result.failed == (("a", f"logit_bias names token {token_id}, outside the vocabulary"),)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("ignore_eos", [False, True])
def test_min_tokens_bans_eos_and_stop_tokens_until_reached(temperature: float, ignore_eos: bool) -> None:
    sampler = _sampler(5, temperature=temperature, min_tokens=3, stop_token_ids=(1, 9), ignore_eos=ignore_eos, seed=1)
    row = [-50.0, 40.0, 10.0, 90.0, 0.0]
    assert [_next(sampler, row) for _ in range(5)] == [2, 2, 2, EOS, EOS]


def test_ignore_eos_alone_bans_nothing() -> None:
    assert _next(_sampler(5, ignore_eos=True, stop_token_ids=(2,)), [0.0, 0.0, 0.0, 9.0, 0.0]) == EOS


def test_a_ban_of_everything_fails_the_row_by_name() -> None:
    sampler = _sampler(4, min_tokens=1, stop_token_ids=(0, 1, 2))
    assert sampler.sample(["a"], torch.zeros(1, 4)).failed == (("a", NOTHING_LEFT),)


def test_the_callers_logits_are_left_alone() -> None:
    logits = torch.tensor([[0.0, 2.0, 1.0, 5.0]])
    before = logits.clone()
    _sampler(4, (1,), logit_bias={1: 9.0}, repetition_penalty=2.0, min_tokens=1, logprobs=2).sample(["a"], logits)
    assert torch.equal(logits, before)
