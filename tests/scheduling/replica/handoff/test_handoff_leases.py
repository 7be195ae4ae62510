"""Lease lengths follow from bytes and rates, within bounds; settings that make no sense are refused by name."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.errors import ConfigError
from scheduling.config import ReplicaCoreConfig
from scheduling.handoff_leases import receiver_lease_s, sender_hold_s

CONFIG = ReplicaCoreConfig()
amounts = st.one_of(st.floats(0.0), st.just(float("nan")))


@given(amounts, st.integers(0, 2**50), amounts)
def test_a_lease_is_always_within_its_bounds(expected_s: float, num_bytes: int, rate: float) -> None:
    assert 2.0 <= receiver_lease_s(CONFIG, expected_s, num_bytes, rate) <= 30.0


def test_a_lease_grows_with_the_bytes_and_with_the_sender_s_work() -> None:
    leases = [receiver_lease_s(CONFIG, 0.0, num_bytes, 1e6) for num_bytes in (0, 10**6, 2 * 10**6, 10**9)]
    assert leases == [2.0, 3.0, 6.0, 30.0]
    assert receiver_lease_s(CONFIG, 4.0, 10**6, 1e6) == 15.0


@pytest.mark.parametrize(
    ("num_bytes", "rate", "hold_s"),
    [(10**6, None, 30.0), (10**6, 0.0, 30.0), (10**6, 1e9, 30.0), (10**8, 1.25e6, 240.0)],
)
def test_a_sender_outlasts_its_receiver(num_bytes: int, rate: float | None, hold_s: float) -> None:
    """XFER-1: 100 MB at 10 Mbit/s take 80 s; no constant would do."""
    assert sender_hold_s(CONFIG, num_bytes, rate) == hold_s


@pytest.mark.parametrize(
    "setting",
    [
        {"max_receiving": 0},
        {"kv_lease_factor": 0.5},
        {"kv_lease_min_s": 0.0},
        {"kv_lease_max_s": 1.0},
        {"link_half_life_s": 0.0},
        {"link_stale_s": -1.0},
        {"link_probe_max_bytes": 1},
        {"link_probe_deadline_s": 0.0},
        {"link_sample_min_bytes": 0},
    ],
)
def test_a_wrong_setting_is_named(setting: dict[str, Any]) -> None:
    with pytest.raises(ConfigError) as caught:
        ReplicaCoreConfig(**setting)
    assert caught.value.param in setting
