"""Max-min sharing against cases worked out by hand."""

from __future__ import annotations

import math

import pytest

from simulator.clock import Clock
from simulator.links import Flow, Network
from simulator.max_min import max_min_rates

INF = math.inf
TEN = dict.fromkeys("abcd", 10.0)


def test_one_flow_takes_the_narrower_of_the_two_ways() -> None:
    assert max_min_rates([("a", "b")], [INF], {"a": 10.0}, {"b": 4.0}) == [4.0]


def test_flows_out_of_one_host_share_it_evenly() -> None:
    assert max_min_rates([("a", "b"), ("a", "c")], [INF, INF], TEN, TEN) == [5.0, 5.0]


def test_what_a_slow_receiver_leaves_goes_to_the_others() -> None:
    """a->b is held to 2 by b's way in, so a->c gets 8 of a's 10."""
    rates = max_min_rates([("a", "b"), ("a", "c")], [INF, INF], TEN, {**TEN, "b": 2.0})
    assert rates == pytest.approx([2.0, 8.0])


def test_the_textbook_chain() -> None:
    """a->c, a->d, b->c, b->c: c's way in gives 10/3 to each of its three, a->d then fills a."""
    rates = max_min_rates([("a", "c"), ("a", "d"), ("b", "c"), ("b", "c")], [INF] * 4, TEN, TEN)
    assert rates == pytest.approx([10 / 3, 20 / 3, 10 / 3, 10 / 3])


def test_a_flow_that_wants_less_leaves_the_rest() -> None:
    assert max_min_rates([("a", "b"), ("a", "c")], [1.0, INF], TEN, TEN) == pytest.approx([1.0, 9.0])


def test_a_dead_way_carries_nothing_and_harms_nobody() -> None:
    assert max_min_rates([("a", "b"), ("a", "c")], [INF, INF], TEN, {**TEN, "b": 0.0}) == pytest.approx([0.0, 10.0])


def ends_of(clock: Clock, network: Network, flows: list[tuple[str, str, float, float]]) -> list[float]:
    """When each flow `(sender, receiver, bytes, begin)` has sent its last byte, all available at its begin."""
    ends = [0.0] * len(flows)

    def begin(number: int) -> None:
        sender, receiver, total, _ = flows[number]

        def sent() -> None:
            ends[number] = clock.now

        network.offer(network.start(sender, receiver, total, sent), total, 0.0)

    for number, flow in enumerate(flows):
        clock.at(flow[3], begin, number)
    clock.run(lambda: False, 1e6)
    return ends


def test_rates_follow_flows_that_come_and_go() -> None:
    """1000 bytes alone for 50 s at 10/s, then shared with 200 bytes (40 s at 5/s), then alone again."""
    clock = Clock()
    network = Network(clock)
    for name in "ab":
        network.set_host(name, 10.0, 10.0)
    ends = ends_of(clock, network, [("a", "b", 1000.0, 0.0), ("a", "b", 200.0, 50.0)])
    assert ends == pytest.approx([120.0, 90.0], abs=0.5)
    assert network.num_bytes == pytest.approx(1200.0)
    assert network.busy_s == pytest.approx(120.0, abs=0.5)


def test_a_change_of_the_link_takes_effect_at_once() -> None:
    clock = Clock()
    network = Network(clock)
    for name in "ab":
        network.set_host(name, 10.0, 10.0)
    clock.at(10.0, network.set_host, "b", 10.0, 0.0)
    clock.at(30.0, network.set_host, "b", 10.0, 100.0)
    assert ends_of(clock, network, [("a", "b", 200.0, 0.0)]) == pytest.approx([40.0], abs=0.5)


def test_bytes_never_cross_before_they_are_there() -> None:
    """100 bytes at 2/s of supply over a link of 10/s end with the supply, and tell nothing about the link."""
    clock = Clock()
    network = Network(clock)
    for name in "ab":
        network.set_host(name, 10.0, 10.0)
    ends: list[float] = []
    flow: Flow = network.start("a", "b", 100.0, lambda: ends.append(clock.now))
    network.offer(flow, 0.0, 2.0)
    clock.run(lambda: False, 1e6)
    assert ends == pytest.approx([50.0], abs=0.6)
    assert flow.queued_bytes < 5.0
