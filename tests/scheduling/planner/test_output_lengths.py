"""Outputs told from prompts, and two windows of which the shorter one is believed when the mix changes."""

from __future__ import annotations

from typing import Any

import pytest

from scheduling.fleet_workload import DemandEstimate
from scheduling.output_lengths import LEAST_ENDS, OutputLengths


def test_outputs_are_told_from_prompts_once_most_of_a_kind_have_ended() -> None:
    lengths = OutputLengths()
    for _ in range(2 * LEAST_ENDS):
        assert lengths.arrived(2000, 1.0) is None
    for _ in range(LEAST_ENDS):
        lengths.ended(2000, 40.0)
    assert lengths.arrived(2000, 1.0) is None, "half of them run on, the longer ones"
    for _ in range(LEAST_ENDS):
        lengths.ended(2000, 60.0)
    assert lengths.arrived(1500, 1.0) == pytest.approx(50.0)
    assert lengths.arrived(150, 1.0) is None


def test_old_ends_count_less_than_new_ones() -> None:
    lengths = OutputLengths()
    for tokens in (10.0, 300.0):
        for _ in range(1000):
            expected = lengths.arrived(100, 1.0)
            lengths.ended(100, tokens)
    assert expected is not None
    assert expected > 250.0


def test_when_the_mix_changes_back_outputs_are_known_at_once(cluster: Any) -> None:
    """What still runs is of the old mix: counted for the new one, it would have called for decode replicas."""
    estimate = DemandEstimate(10.0)
    now = 0.0
    for prompt, output in ((2000, 40.0), (150, 500.0)):
        for _ in range(200):
            now += 0.25
            estimate.arrived(cluster.arrived(f"r{now}", prompt_tokens=prompt), now)
            estimate.ended(prompt, output, now)
    for _ in range(40):
        now += 0.25
        estimate.arrived(cluster.arrived(f"r{now}", prompt_tokens=2000), now)
    found = estimate.at(now, running=100, decode_step_s=0.03, prefill_s_per_token=3e-4)
    assert found is not None
    assert found.prompt_tokens == pytest.approx(2000.0)
    assert found.output_tokens == pytest.approx(40.0, rel=0.05)


def test_a_load_without_change_is_averaged_over_the_longer_window(cluster: Any) -> None:
    estimate = DemandEstimate(10.0)
    for index in range(400):
        now = index / 4
        estimate.arrived(cluster.arrived(f"r{index}", prompt_tokens=100 if index % 40 else 4000), now)
        estimate.ended(100, 50.0, now)
    found = [estimate.at(now + shift, 0, 0.0, 1e-3) for shift in (0.0, 1.0, 2.0)]
    means = [one.prompt_tokens for one in found if one is not None]
    assert len(means) == 3
    assert max(means) / min(means) < 1.15
