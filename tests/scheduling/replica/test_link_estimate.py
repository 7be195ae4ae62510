"""The bandwidth estimate: right after one probe, weighted by size, quick to follow a change, calm under an outlier."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.link_estimate import LinkEstimate

MB = 1_000_000


def estimate() -> LinkEstimate:
    return LinkEstimate(half_life_s=60.0, min_bytes=262_144)


def test_nothing_is_known_before_the_first_measurement() -> None:
    link = estimate()
    assert link.bytes_per_s is None
    assert link.age_s(10.0) is None
    assert link.spread == 0.0


def test_one_probe_is_enough() -> None:
    link = estimate()
    assert link.add(4 * MB, 0.32, 10.0)
    assert link.bytes_per_s == pytest.approx(12.5 * MB)
    assert link.age_s(15.0) == 5.0


@pytest.mark.parametrize("factor", [0.01, 0.1, 0.5, 0.8, 0.9, 1.1, 1.25, 2.0, 10.0, 100.0])
@pytest.mark.parametrize("size", [1 * MB, 16 * MB, 200 * MB])
def test_a_change_of_rate_is_followed_within_three_transfers(factor: float, size: int) -> None:
    link = estimate()
    rate = 125.0 * MB
    for index in range(30):
        link.add(16 * MB, 16 * MB / rate, float(index))
    for index in range(3):
        link.add(size, size / (rate * factor), 30.0 + index)
    assert link.bytes_per_s == pytest.approx(rate * factor, rel=0.1)


def test_one_outlier_is_not_a_change() -> None:
    link = estimate()
    for index in range(10):
        link.add(16 * MB, 0.128, float(index))
    link.add(1 * MB, 0.08, 10.0)
    assert link.bytes_per_s == pytest.approx(125 * MB, rel=0.2)
    link.add(16 * MB, 0.128, 11.0)
    assert link.bytes_per_s == pytest.approx(125 * MB, rel=0.15)


def test_large_transfers_weigh_more() -> None:
    link = estimate()
    link.add(100 * MB, 1.0, 0.0)
    link.add(1 * MB, 0.0125, 0.0)
    assert link.bytes_per_s == pytest.approx(100 * MB, rel=0.02)
    assert 0.0 < link.spread < 0.2


def test_old_measurements_fade() -> None:
    link = estimate()
    link.add(16 * MB, 0.16, 0.0)
    link.add(16 * MB, 0.128, 600.0)
    assert link.bytes_per_s == pytest.approx(125 * MB, rel=0.001)


def test_tiny_transfers_say_nothing_but_slow_ones_do() -> None:
    link = estimate()
    assert not link.add(10_000, 0.001, 0.0)
    assert not link.add(0, 1.0, 0.0)
    assert not link.add(10 * MB, 0.0, 0.0)
    assert not link.add(10 * MB, float("nan"), 0.0)
    assert link.bytes_per_s is None
    assert link.add(100_000, 0.1, 0.0)  # a link of 1 MB/s
    assert link.bytes_per_s == pytest.approx(1 * MB)


def test_noise_shows_as_spread_and_averages_out() -> None:
    chance = random.Random(3)
    link = estimate()
    for index in range(200):
        link.add(16 * MB, 0.128 * chance.uniform(0.95, 1.05), float(index))
    assert link.bytes_per_s == pytest.approx(125 * MB, rel=0.05)
    assert 0.005 < link.spread < 0.06


@given(st.lists(st.tuples(st.integers(0, 10**9), st.floats(0.0, 100.0), st.floats(0.0, 100.0)), max_size=40))
def test_the_estimate_lies_between_what_was_measured(samples: list[tuple[int, float, float]]) -> None:
    link = estimate()
    now, rates = 0.0, []
    for num_bytes, duration_s, passed_s in samples:
        now += passed_s
        if link.add(num_bytes, duration_s, now):
            rates.append(num_bytes / duration_s)
    if rates:
        assert link.bytes_per_s is not None
        assert min(rates) * 0.999 <= link.bytes_per_s <= max(rates) * 1.001
        assert link.spread >= 0.0
