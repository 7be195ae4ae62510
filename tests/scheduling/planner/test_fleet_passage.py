"""What a change of the mix costs on the way, and whether it pays."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from contracts.phase import Role
from contracts.views import ReplicaView
from scheduling.fleet_capacity import Site, guarded_prefill_rate, role_rates
from scheduling.fleet_mixes import Mix, carried
from scheduling.fleet_passage import LATE_AT_LIMIT, Passage, gained, passage, served
from scheduling.fleet_workload import Demand

POOLS, WHOLE = Mix(prefill=2, decode=2), Mix(mixed=4)
COMFORT = 0.8
Views = Callable[..., list[ReplicaView]]


@pytest.fixture
def views(cluster: Any) -> Views:
    """Mixed replicas with so many streams each."""

    def build(*streams: int, **view: Any) -> list[ReplicaView]:
        shown = {"role": Role.MIXED, "decode_step_s": 0.025} | view
        return [cluster.view(f"r{index}", running=count, **shown) for index, count in enumerate(streams)]

    return build


def test_an_empty_fleet_changes_for_free(
    demand: Callable[..., Demand], site: Callable[..., Site], views: Views
) -> None:
    rates = role_rates(demand(), site())
    way = passage(views(0, 0, 9, 9), POOLS, demand(), rates, site(), 200.0)
    assert way == Passage(carries=carried(POOLS, rates), lasts_s=0.0)
    assert passage(views(9, 9, 9, 9), WHOLE, demand(), rates, site(), 200.0).lasts_s == 0.0


def test_more_streams_take_longer_and_carry_less_than_none(
    demand: Callable[..., Demand], site: Callable[..., Site], views: Views
) -> None:
    rates = role_rates(demand(), site())
    ways = [passage(views(*[count] * 4), POOLS, demand(), rates, site(), 200.0) for count in (1, 4, 16)]
    assert all(more.lasts_s > less.lasts_s for less, more in pairwise(ways))
    assert all(way.carries < carried(POOLS, rates) for way in ways)
    # the last of 4 exponential times of 200 tokens of 60 ms: 1 + 1/2 + 1/3 + 1/4 of them
    assert ways[1].lasts_s == pytest.approx(200 * 0.06 * (25 / 12), rel=0.01)


def test_whoever_waits_for_its_kv_is_no_stream_yet(
    demand: Callable[..., Demand], site: Callable[..., Site], views: Views
) -> None:
    rates = role_rates(demand(), site())
    assert passage(views(5, 5, 5, 5, receiving=5), POOLS, demand(), rates, site(), 200.0).lasts_s == 0.0


def test_prefill_replicas_that_still_guard_streams_count_too(
    demand: Callable[..., Demand], site: Callable[..., Site], views: Views
) -> None:
    rates = role_rates(demand(), site())
    there = views(5, 5, role=Role.PREFILL, guarded=3) + views(0, 0, role=Role.DECODE)
    assert passage(there, POOLS, demand(), rates, site(), 200.0).lasts_s > 0.0


def test_the_longer_a_decode_step_the_less_is_prefilled_beside_it(
    demand: Callable[..., Demand], site: Callable[..., Site]
) -> None:
    found = [guarded_prefill_rate(demand(), site(), step_s) for step_s in (0.0, 0.02, 0.04, 0.06)]
    assert found[0] == pytest.approx(role_rates(demand(), site()).prefill)
    assert all(after < before for before, after in pairwise(found))
    assert found[-1] < 0.1 * found[0]


def test_what_is_served_of_what_arrives() -> None:
    assert served(8.0, 10.0, COMFORT) == 8.0
    assert served(10.0, 10.0, COMFORT) == pytest.approx(10.0 * (1.0 - LATE_AT_LIMIT))
    assert served(20.0, 10.0, COMFORT) == served(10.0, 10.0, COMFORT)
    assert served(5.0, 0.0, COMFORT) == 0.0


def test_a_change_pays_when_it_brings_in_more_than_it_costs() -> None:
    way = Passage(carries=2.0, lasts_s=40.0)
    assert gained(4.0, 3.0, 6.0, way, 300.0, COMFORT) > 0.0
    assert gained(4.0, 3.0, 6.0, way, 50.0, COMFORT) < 0.0, "the load is another one before it has paid"
    assert gained(2.0, 3.0, 6.0, way, 300.0, COMFORT) < 0.0, "nothing is lacking"
    assert gained(4.0, 0.0, 3.0, Passage(carries=3.0, lasts_s=0.0), 1.0, COMFORT) > 0.0
