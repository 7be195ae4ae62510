"""The formula of `scheduling.link_math` against a two-stage pipeline simulated layer by layer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.handoff import LinkView
from scheduling.link_math import cautious_rate, exposed_transfer_s, is_sustainable, queued_transfer_s

seconds = st.floats(0.0, 100.0)
sizes = st.floats(1.0, 1e9)
rates = st.floats(1e3, 1e10)


def pipeline_end_s(num_bytes: float, num_layers: int, prefill_s: float, rate: float) -> float:
    """When the last layer is across: each is sent once it is computed and its predecessor is sent."""
    link_free_at = 0.0
    for layer in range(1, num_layers + 1):
        computed_at = layer * prefill_s / num_layers
        link_free_at = max(computed_at, link_free_at) + num_bytes / num_layers / rate
    return link_free_at


@given(sizes, st.integers(1, 80), seconds, rates)
def test_exposed_part_is_that_of_a_two_stage_pipeline(size: float, layers: int, prefill_s: float, rate: float) -> None:
    exposed_s = exposed_transfer_s(size, layers, prefill_s, rate)
    assert prefill_s + exposed_s == pytest.approx(pipeline_end_s(size, layers, prefill_s, rate), rel=1e-9, abs=1e-9)


@given(sizes, st.integers(1, 80), seconds, rates)
def test_a_hand_off_exposes_between_one_layer_and_all(size: float, layers: int, prefill_s: float, rate: float) -> None:
    exposed_s = exposed_transfer_s(size, layers, prefill_s, rate)
    assert size / rate / layers * (1 - 1e-9) <= exposed_s <= size / rate * (1 + 1e-9)
    if is_sustainable(size, prefill_s, rate):
        assert exposed_s == pytest.approx(size / rate / layers, rel=1e-6, abs=1e-9)


@given(sizes, st.integers(1, 80), seconds, rates, st.floats(1.0, 10.0))
def test_a_faster_link_never_exposes_more(size: float, layers: int, prefill_s: float, rate: float, more: float) -> None:
    slow = exposed_transfer_s(size, layers, prefill_s, rate)
    assert exposed_transfer_s(size, layers, prefill_s, rate * more) <= slow * (1 + 1e-9) + 1e-12


@given(st.lists(st.tuples(sizes, seconds), min_size=1, max_size=6), st.integers(1, 20), rates)
def test_several_prompts_in_a_row_never_end_before_the_prediction(
    prompts: list[tuple[float, float]], layers: int, rate: float
) -> None:
    """What waits ahead on the same link bounds the last one's hand-off from below, its own pipeline does too."""
    link_free_at, computed_at = 0.0, 0.0
    for size, prefill_s in prompts:
        for _ in range(layers):
            computed_at += prefill_s / layers
            link_free_at = max(computed_at, link_free_at) + size / layers / rate
    size, prefill_s = prompts[-1]
    ahead, work_s = sum(size for size, _ in prompts[:-1]), sum(prefill_s for _, prefill_s in prompts)
    predicted = max(exposed_transfer_s(size, layers, prefill_s, rate), queued_transfer_s(size, ahead, work_s, rate))
    assert work_s + predicted <= link_free_at * (1 + 1e-9) + 1e-9


def test_caution_takes_the_spread_off_and_age_adds_to_it() -> None:
    link = LinkView(peer_id="d", peer_incarnation="1", bytes_per_s=100.0, spread=0.03)
    assert cautious_rate(link, age_s=0.0, caution=1.0, spread_per_s=0.001) == pytest.approx(97.0)
    assert cautious_rate(link, age_s=40.0, caution=1.0, spread_per_s=0.001) == pytest.approx(95.0)
    assert cautious_rate(link, age_s=40.0, caution=2.0, spread_per_s=0.001) == pytest.approx(90.0)
    assert cautious_rate(link, age_s=1e6, caution=1.0, spread_per_s=0.001) == pytest.approx(10.0)
    unmeasured = LinkView(peer_id="d", peer_incarnation="1")
    assert cautious_rate(unmeasured, age_s=0.0, caution=1.0, spread_per_s=0.001) is None
