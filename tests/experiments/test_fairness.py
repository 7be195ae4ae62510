"""A heavy key in the simulator cannot take a light one's share."""

from __future__ import annotations

import pytest

from experiments.fairness.__main__ import scenario, ttft_attained
from simulator.run import simulate


@pytest.mark.slow
def test_a_heavy_key_does_not_push_a_light_one_below_its_share() -> None:
    """Twice what two replicas carry, ten parts of eleven of it from one key. The other asks for less than half of what
    is served, so nearly all of its requests are to be on time, without less being served in all."""
    without, fair = (simulate(scenario(10.0, fair=on, seconds=40.0)) for on in (False, True))
    assert ttft_attained(fair, "light") >= 0.9 > ttft_attained(without, "light")
    assert fair.usual.ttft_attained >= without.usual.ttft_attained
    assert fair.finished >= 0.98 * without.finished
