"""What is certain in spite of the error of an estimate."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from scheduling.fleet_capacity import Site, role_rates
from scheduling.fleet_certainty import certain_gain, certain_rate, corners
from scheduling.fleet_mixes import Mix, carried
from scheduling.fleet_workload import Demand, Errors

WHOLE, POOLS = Mix(mixed=4), Mix(prefill=2, decode=2)


def test_a_known_demand_has_one_corner(demand: Callable[..., Demand], site: Callable[..., Site]) -> None:
    known = demand(output_tokens=300.0, prompt_tokens=1200.0)
    assert {corner.output_tokens for corner in corners(known)} == {300.0}
    rates = role_rates(known, site())
    gain = carried(POOLS, rates) / carried(WHOLE, rates)
    assert certain_gain(WHOLE, POOLS, known, site(), None) == pytest.approx(gain)
    assert certain_rate(known) == known.rate


@pytest.mark.parametrize("prompt", [100.0, 500.0, 2000.0])
@pytest.mark.parametrize("output", [30.0, 200.0, 600.0])
def test_less_is_certain_of_what_is_less_known(
    demand: Callable[..., Demand], site: Callable[..., Site], prompt: float, output: float
) -> None:
    gains = []
    for error in (0.0, 0.1, 0.3, 1.0):
        errors = Errors(rate=error, prompt=error, output=error)
        asked = demand(prompt_tokens=prompt, output_tokens=output, errors=errors)
        gains.append(certain_gain(WHOLE, POOLS, asked, site(), None))
        assert certain_rate(asked) == pytest.approx(asked.rate * (1.0 - error))
    assert gains[0] >= max(gains[1:]) - 1e-9


def test_from_nothing_to_something_is_certain(demand: Callable[..., Demand], site: Callable[..., Site]) -> None:
    no_link = site(link_bytes_per_s=None)
    assert certain_gain(POOLS, WHOLE, demand(), no_link, None) == float("inf")
    assert certain_gain(WHOLE, POOLS, demand(), no_link, None) == 0.0
