"""What one replica carries in each role: bounds, directions, and the closed form at points that can be reckoned."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from contracts.phase import Layout
from contracts.request import Slo
from contracts.views import StepCost
from scheduling.fleet_capacity import BUSIEST, Site, role_rates, within
from scheduling.fleet_workload import Demand

ROLES = ("alternating", "mixed", "prefill", "decode")
Build = Callable[..., Any]


def values(demand: Demand, site: Site) -> list[float]:
    rates = role_rates(demand, site)
    return [getattr(rates, role) for role in ROLES]


@pytest.mark.parametrize("name", ["prompt_tokens", "output_tokens"])
def test_longer_requests_are_never_carried_faster(demand: Build, site: Build, name: str) -> None:
    found = [values(demand(**{name: tokens}), site()) for tokens in (20.0, 100.0, 400.0, 1600.0, 6400.0)]
    for shorter, longer in pairwise(found):
        assert all(after <= before * 1.001 for before, after in zip(shorter, longer, strict=True))


def test_looser_targets_faster_links_and_more_kv_never_carry_less(demand: Build, site: Build) -> None:
    strict = values(demand(), site())
    loose = values(demand(slo=Slo(ttft_s=6.0, tpot_s=0.12)), site())
    roomy = values(demand(), site(kv_tokens=1e9, link_bytes_per_s=1.25e10))
    assert all(after >= before * 0.999 for before, after in zip(strict, loose, strict=True))
    assert all(after >= before * 0.999 for before, after in zip(strict, roomy, strict=True))


@pytest.mark.parametrize("link", [None, 0.0])
def test_without_a_link_there_are_no_pools(demand: Build, site: Build, link: float | None) -> None:
    rates = role_rates(demand(), site(link_bytes_per_s=link))
    assert rates.prefill == rates.decode == 0.0
    assert rates.mixed > 0.0
    assert rates.alternating > 0.0


def test_a_slow_link_is_what_bounds_the_pools(demand: Build, site: Build) -> None:
    # 500 tokens are 98 MB; at 50 MB/s their transfer alone takes 2 s of the 3 s
    rates = role_rates(demand(long_prompt_tokens=500.0), site(link_bytes_per_s=50e6))
    assert rates.decode == pytest.approx(BUSIEST * 50e6 / (500 * 196_608), rel=1e-4)
    assert rates.prefill <= rates.decode * 1.0001


def test_decode_by_hand(demand: Build, site: Build) -> None:
    # d(b) = 20 ms + 0.5 ms * b <= 60 ms: 80 streams, each 100 tokens of 60 ms
    cost = StepCost(a0=0.02, a1=0.0005, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    rates = role_rates(demand(output_tokens=100.0), site(cost=cost, kv_tokens=1e9, link_bytes_per_s=1e12))
    assert rates.decode == pytest.approx(80 / (100 * 0.06), rel=1e-4)


def test_kv_bounds_the_streams(demand: Build, site: Build) -> None:
    # 600 tokens of context each: 10 streams in 90 % of 6667 tokens; d(10) by hand
    asked, place = demand(), site(kv_tokens=10 * 600 / BUSIEST, link_bytes_per_s=1e12)
    step_s = 0.02 + 10 * (1.0 / 3419.0 + 1e-4 + 2e-7 * 600)
    assert role_rates(asked, place).decode == pytest.approx(10 / (200 * step_s), rel=1e-3)


def test_max_running_bounds_the_streams_too(demand: Build, site: Build) -> None:
    assert role_rates(demand(), site(max_running=4.0)).mixed < role_rates(demand(), site()).mixed


def test_targets_out_of_reach_still_give_a_plan(demand: Build, site: Build) -> None:
    assert all(rate > 0.0 for rate in values(demand(slo=Slo(ttft_s=1e-6, tpot_s=1e-6)), site(link_bytes_per_s=1e13)))


def test_what_needs_nothing_is_still_finite(demand: Build, site: Build) -> None:
    free = StepCost(a0=0.0, a1=0.0, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    tiny = values(demand(prompt_tokens=1.0, output_tokens=1.0), site(cost=free))
    assert all(0.0 <= rate <= 1e10 for rate in tiny)


def test_under_a_demanded_layout_only_its_roles_carry(demand: Build, site: Build) -> None:
    rates = role_rates(demand(), site())
    assert within(rates, None) == rates
    used = {
        layout: {role for role in ROLES if getattr(within(rates, layout), role) > 0.0}
        for layout in (Layout.PHASED, Layout.COLOCATED, Layout.DISAGGREGATED)
    }
    assert used == {
        Layout.PHASED: {"alternating"},
        Layout.COLOCATED: {"mixed"},
        Layout.DISAGGREGATED: {"prefill", "decode"},
    }
