"""The figures of the int8 experiment, on logits small enough to check by hand, and its prompts."""

from __future__ import annotations

import math

import pytest
import torch

from experiments.int8_quality.__main__ import markdown
from experiments.int8_quality.comparison import Comparison
from experiments.int8_quality.prompts import user_messages
from experiments.int8_quality.recording import perplexity


def test_there_are_200_different_prompts() -> None:
    messages = user_messages()
    assert len(messages) == len(set(messages)) == 200
    assert not any("{}" in message for message in messages)


def test_equal_logits_agree_in_everything() -> None:
    comparison = Comparison()
    logits = torch.randn(3, 4, 50, generator=torch.Generator().manual_seed(1))
    comparison.add(logits, logits)
    figures = comparison.figures()
    assert figures["agreement_all_positions"] == figures["prompts_agreeing_everywhere"] == 1.0
    assert figures["logit_error_max"] == figures["kl_max"] == figures["regret_max"] == 0.0
    assert (figures["prompts"], figures["positions"]) == (3, 12)


def test_figures_of_two_groups() -> None:
    comparison = Comparison()
    reference = torch.tensor([[[0.0, math.log(3)], [0.0, math.log(3)]]])
    comparison.add(reference, reference.clone())
    comparison.add(reference, torch.tensor([[[0.0, math.log(3)], [math.log(3), math.log(3) - 1e-3]]]))
    figures = comparison.figures()
    assert figures["agreement_last_prompt_token"] == 1.0
    assert figures["agreement_all_positions"] == 0.75
    assert figures["prompts_agreeing_everywhere"] == 0.5
    assert figures["regret_mean_where_different"] == figures["regret_max"] == pytest.approx(math.log(3), rel=1e-5)
    assert figures["logit_error_max"] == pytest.approx(math.log(3), rel=1e-5)
    assert figures["logit_error_mean"] == pytest.approx((math.log(3) + 1e-3) / 8, rel=1e-4)
    expected_kl = 0.25 * math.log(0.25 / 0.5) + 0.75 * math.log(0.75 / 0.5)
    assert figures["kl_max"] == pytest.approx(expected_kl, abs=1e-3)


def test_the_table_has_every_figure() -> None:
    comparison = Comparison()
    logits = torch.randn(1, 2, 9, generator=torch.Generator().manual_seed(1))
    comparison.add(logits, -logits)
    figures = {**comparison.figures(), "text_tokens": 10, "perplexity_fp32": 8.0, "perplexity_int8": 8.2}
    table = markdown(["head"], {**figures, "perplexity_change": 0.025})
    assert "8.000 to 8.200 (+2.50%)" in table
    assert table.count("\n| ") == 11


def test_perplexity() -> None:
    assert perplexity([math.log(2), math.log(8)]) == pytest.approx(4.0)
