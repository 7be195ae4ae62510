"""The best mix, beside one found by trying every one."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.phase import Layout, Role
from scheduling.fleet_capacity import RoleRates, within
from scheduling.fleet_mixes import Bounds, Mix, best_mix, carried

rate = st.floats(min_value=0.0, max_value=10.0)
some_rates = st.builds(RoleRates, alternating=rate, mixed=rate, prefill=rate, decode=rate)
few = st.integers(min_value=0, max_value=2)


def every_mix(bounds: Bounds) -> list[Mix]:
    size = range(bounds.total + 1)
    found = [
        Mix(alternating=a, mixed=m, prefill=p, decode=bounds.total - a - m - p)
        for a, m, p in product(size, size, size)
        if a + m + p <= bounds.total
    ]
    return [
        mix
        for mix in found
        if mix.prefill + mix.decode <= bounds.poolable
        and bool(mix.prefill) == bool(mix.decode)
        and all(mix.of_role(role) >= bounds.pinned.of_role(role) for role in Role)
    ]


@settings(max_examples=200, deadline=None)
@given(some_rates, st.integers(min_value=1, max_value=6), st.integers(min_value=0, max_value=6))
def test_no_mix_carries_clearly_more(rates: RoleRates, total: int, poolable: int) -> None:
    bounds = Bounds(total=total, poolable=min(total, poolable))
    found = best_mix(Mix(mixed=total), rates, bounds)
    most = max(carried(mix, rates) for mix in every_mix(bounds))
    assert carried(found, rates) >= most / 1.03
    assert found in every_mix(bounds)


@settings(max_examples=200, deadline=None)
@given(some_rates, few, few, few, few, st.integers(min_value=0, max_value=3))
def test_pins_are_kept(rates: RoleRates, a: int, m: int, p: int, d: int, free: int) -> None:
    pinned = Mix(alternating=a, mixed=m, prefill=p, decode=d)
    total = a + m + p + d + free
    present = Mix(alternating=a, mixed=m + free, prefill=p, decode=d)
    found = best_mix(present, rates, Bounds(total=total, poolable=total, pinned=pinned))
    assert sum(found.of_role(role) for role in Role) == total
    assert all(found.of_role(role) >= pinned.of_role(role) for role in Role)


@settings(max_examples=100, deadline=None)
@given(some_rates, st.integers(min_value=2, max_value=9))
def test_a_demanded_hand_over_takes_every_replica(rates: RoleRates, total: int) -> None:
    bounds = Bounds(total=total, poolable=total, layout=Layout.DISAGGREGATED)
    pools = within(rates, Layout.DISAGGREGATED)
    found = best_mix(Mix(prefill=1, decode=total - 1), pools, bounds)
    most = max(min(p * pools.prefill, (total - p) * pools.decode) for p in range(1, total))
    assert carried(found, pools) >= most / 1.02


def test_a_mix_as_good_as_the_best_is_left_alone() -> None:
    even = RoleRates(alternating=1.0, mixed=1.001, prefill=2.0, decode=2.0)
    present = Mix(prefill=2, decode=2)
    assert best_mix(present, even, Bounds(total=4, poolable=4)) == present


@pytest.mark.parametrize("total", [64, 257, 4096])
def test_pools_of_a_large_fleet_follow_the_rates(total: int) -> None:
    rates = RoleRates(alternating=0.1, mixed=0.1, prefill=3.0, decode=1.0)
    found = best_mix(Mix(mixed=total), rates, Bounds(total=total, poolable=total))
    assert found.prefill / total == pytest.approx(0.25, abs=0.02)
    assert carried(found, rates) >= 0.75 * total * 0.97
