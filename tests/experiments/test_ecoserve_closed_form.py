"""Rolling activation reaches the closed form of its decode step: n replicas decode n-1 times out of n."""

from __future__ import annotations

import pytest

from experiments.ecoserve.closed_form import closed_form_s, find, scenario
from simulator.run import simulate


@pytest.mark.slow
@pytest.mark.parametrize("replicas", [2, 4, 8])
def test_decode_step_at_the_goodput_point_is_the_closed_form(replicas: int) -> None:
    found = find(replicas, duration_s=80.0)
    assert 0.98 <= found.goodput <= 1.08
    assert found.decode_step_s == pytest.approx(closed_form_s(replicas), rel=0.1)


def test_two_replicas_keep_the_target_just_below_that_point() -> None:
    report = simulate(scenario(2, 0.98, "min", 20.0))
    assert report.ecoserve.attained == 1.0
    assert report.itl_s.p50 == pytest.approx(closed_form_s(2), rel=0.1)
    assert sum(replica.overdraft_s for replica in report.replicas) < 0.1
