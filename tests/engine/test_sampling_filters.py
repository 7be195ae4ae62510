"""Temperature, top-k, top-p and min-p against a slow reference, edge values, and the drawn distribution."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from contracts.batch import SequenceStart
from contracts.request import SamplingParams
from engine.sampling.filters import Candidates, draw, filter_row
from engine.sampling.sampler import Sampler


def _reference(row: list[float], params: SamplingParams) -> tuple[dict[int, float], float]:
    """The distribution a row should be drawn from, by plain loops over (logit, id) pairs.

    Also how close any token came to the edge of a filter, where float32 and float64 may differ.
    """
    best = max(row)
    order = sorted(range(len(row)), key=lambda token_id: (-row[token_id], token_id))
    weights = {token_id: math.exp((row[token_id] - best) / params.temperature) for token_id in order}
    if params.top_k:
        weights = dict(list(weights.items())[: params.top_k])
    total = sum(weights.values())
    kept: dict[int, float] = {}
    held = 0.0
    margin = 1.0
    for token_id, weight in weights.items():
        if params.top_p < 1.0 and kept:
            margin = min(margin, abs(held / total - params.top_p))
            if held / total >= params.top_p:
                break
        kept[token_id] = weight
        held += weight
    margin = min(margin, *(abs(weight - params.min_p) for weight in kept.values()))
    kept = {token_id: weight for token_id, weight in kept.items() if weight >= params.min_p}
    return {token_id: weight / sum(kept.values()) for token_id, weight in kept.items()}, margin


def _as_probabilities(candidates: Candidates) -> dict[int, float]:
    ids = range(len(candidates.weights)) if candidates.ids is None else candidates.ids.tolist()
    total = candidates.weights.sum().item()
    return {token_id: weight / total for token_id, weight in zip(ids, candidates.weights.tolist(), strict=True)}


@settings(deadline=None, max_examples=300)
@given(
    row=st.lists(st.integers(-12, 12).map(lambda value: value / 2), min_size=1, max_size=40),
    temperature=st.sampled_from([0.3, 0.7, 1.0, 1.9]),
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([1.0, 0.97, 0.81, 0.5, 0.13, 1e-6]),
    min_p=st.sampled_from([0.0, 0.01, 0.2, 0.99]),
)
def test_the_filters_agree_with_the_reference(
    row: list[float], temperature: float, top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p)
    expected, margin = _reference(row, params)
    assume(margin > 1e-5)
    assert _as_probabilities(filter_row(torch.tensor(row), params)) == pytest.approx(expected, rel=1e-4)


def _kept(row: list[float], **params: float | int) -> list[int]:
    settings_ = {"temperature": 1.0, **params}
    ids = filter_row(torch.tensor(row), SamplingParams(**settings_)).ids  # type: ignore[arg-type]
    return list(range(len(row))) if ids is None else ids.tolist()


def test_top_k_keeps_exactly_k_and_the_lower_id_of_a_tie() -> None:
    row = [1.0, 2.0, 2.0, 0.0, 2.0]
    assert _kept(row, top_k=1) == [1]
    assert _kept(row, top_k=2) == [1, 2]
    assert _kept(row, top_k=4) == [0, 1, 2, 4]
    assert _kept(row, top_k=5) == _kept(row, top_k=6) == _kept(row, top_k=0) == [0, 1, 2, 3, 4]


def test_top_p_keeps_as_few_as_hold_the_mass() -> None:
    quarters = [0.0, 0.0, 0.0, 0.0]
    assert _kept(quarters, top_p=0.25) == [0]
    assert _kept(quarters, top_p=0.2501) == [0, 1]
    assert _kept(quarters, top_p=0.5) == [0, 1]
    assert _kept(quarters, top_p=0.9999) == [0, 1, 2, 3]
    assert _kept(quarters, top_p=1e-9) == [0]
    assert _kept([5.0, -torch.inf, 5.0], top_p=0.9999) == [0, 2]


def test_top_p_looks_at_what_top_k_left() -> None:
    assert _kept([0.0] * 10, top_k=4, top_p=0.5) == [0, 1]


def test_min_p_is_a_share_of_the_likeliest() -> None:
    row = [math.log(8), math.log(4), math.log(2), 0.0]
    assert _kept(row, min_p=0.49) == [0, 1]
    assert _kept(row, min_p=1.0) == [0]
    assert _kept(row, min_p=0.001) == [0, 1, 2, 3]


def test_a_draw_never_takes_a_token_without_weight() -> None:
    weights = torch.tensor([0.0, 1.0, 0.0, 0.5, 0.0])
    assert draw(Candidates(None, weights), 0.0) == 1
    assert draw(Candidates(None, weights), 1.0 - 2.0**-53) == 3
    assert draw(Candidates(torch.tensor([9, 7]), torch.tensor([1.0, 1.0])), 0.5) == 7


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=1.0, seed=1),
        SamplingParams(temperature=0.6, seed=2, top_k=12),
        SamplingParams(temperature=1.5, seed=3, top_p=0.8),
        SamplingParams(temperature=1.0, seed=4, min_p=0.1),
        SamplingParams(temperature=1.2, top_k=15, top_p=0.9, min_p=0.02),
    ],
)
def test_tokens_are_drawn_with_the_right_frequencies(params: SamplingParams) -> None:
    """Chi-square of 3,000 tokens of one sequence; 45.3 is p = 0.001 at 20 degrees of freedom, the most there are."""
    draws = 3000
    row = [math.log(1 + (7 * token_id) % 20) for token_id in range(21)]
    expected, _ = _reference(row, params)
    sampler = Sampler(21, (), default_seed=5)
    sampler.start(SequenceStart("a", (), params))
    counts = dict.fromkeys(range(21), 0)
    logits = torch.tensor([row])
    for _ in range(draws):
        counts[sampler.sample(["a"], logits).tokens[0].token_id] += 1
    assert all(counts[token_id] == 0 for token_id in counts if token_id not in expected)
    assert sum((counts[token] - draws * share) ** 2 / (draws * share) for token, share in expected.items()) < 45.3
