"""Links that are slow, that become slow in mid-transfer, or that carry nothing: deadlines follow from bytes and rates.

XFER-1 of the field bugs; the estimate that planning counts on; what /fleet shows of a link.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from contracts.phase import Role

pytestmark = pytest.mark.system

MBIT = 125_000.0
KV_BYTES = 512  # a token


@contextlib.contextmanager
def parted(pair: Any, one: str, other: str | None = None) -> Iterator[None]:
    pair.lan.part(one, other)
    try:
        yield
    finally:
        pair.lan.rejoin(one, other)


def slow(pair: Any, mbit: float) -> None:
    """With a queue in proportion: else control messages wait for seconds behind bulk data."""
    pair.lan.shape("p", mbit * MBIT, queue_s=0.25)


def within(pair: Any, wire_rate: float, share: float) -> bool:
    """Whether the estimate agrees with a link of this nominal rate."""
    measured = pair.link()["bytes_per_s"]
    return measured is not None and abs(measured / pair.payload_rate(wire_rate) - 1.0) <= share


@pytest.mark.slow
def test_ten_mbit_and_then_nothing(pair: Any) -> None:
    """The first request takes as long as its bytes do. The second one's deadline follows from them, and is said."""
    slow(pair, 10)
    first = pair.ask(4000, on_unavailable="fail")
    with pair.crossed(4000 * KV_BYTES):
        pair.served(first)
    assert first.headers["x-phaseserve-layout"] == "disaggregated"
    pair.served(pair.ask(2000, on_unavailable="fail"))
    pair.wait(lambda: within(pair, 10 * MBIT, 0.25), 2.0)
    second = pair.ask(4000)
    pair.wait_sent(256 << 10)
    pair.lan.shape("p", 1000.0)  # nothing to speak of: a ping or two a second still pass
    pair.served(second, 60.0)
    said = re.findall(r"hand-off of \S+ ended early: .*", pair.log("d") + pair.log("p"))
    assert said, pair.story()
    assert second.took_s < 30.0, said


@pytest.mark.slow
def test_the_deadline_grows_with_the_bytes(pair: Any) -> None:
    """At 2 Mbit/s a hand-off of 12 s is waited for, and is not taken for a dead one."""
    slow(pair, 10)
    pair.served(pair.ask(4000, on_unavailable="fail"))
    failed = pair.views()["d"]["handoffs_failed"]
    slow(pair, 2)
    for _ in range(2):
        asked = pair.ask(6000, on_unavailable="fail")
        pair.served(asked, 90.0)
    assert pair.views()["d"]["handoffs_failed"] == failed, pair.story()
    assert asked.took_s > 10.0
    pair.wait(lambda: within(pair, 2 * MBIT, 0.3), 3.0)


@pytest.mark.slow
def test_one_percent_in_mid_transfer(pair: Any) -> None:
    """From 100 to 1 Mbit/s under way: slow is not dead, and whatever is decided, the client gets its answer."""
    pair.lan.shape("p", 100 * MBIT)
    pair.served(pair.ask(4000, on_unavailable="fail"))
    asked = pair.ask(16000)
    pair.wait_sent(1 << 20)
    slow(pair, 1)
    pair.served(asked, 120.0)
    pair.lan.shape("p", None)
    pair.wait_whole(["p", "d"])
    pair.served(pair.ask(1000, on_unavailable="fail"))


@pytest.mark.slow
@pytest.mark.parametrize("direction", ["p", "d"])
def test_one_way_only(pair: Any, direction: str) -> None:
    """One direction of the link carries nothing: KV out, or acknowledgements back."""
    slow(pair, 8)
    asked = pair.ask(4000)
    pair.wait_sent(256 << 10)
    other = "d" if direction == "p" else "p"
    pair.lan.deafen(other, direction)
    try:
        pair.served(asked, 60.0)
    finally:
        pair.lan.rejoin(direction, other)
    pair.wait_whole(["p", "d"])


@pytest.mark.slow
def test_the_estimate_after_one_probe_and_after_a_change(start_net: Any) -> None:
    """100 Mbit/s from the join on; a change is followed within three transfers. Idle links are probed, sparingly."""
    core = {"link_stale_s": 1.0, "link_probe_gap_s": 0.5, "kv_lease_max_s": 10.0}
    core |= {"link_probe_max_bytes": 4 << 20, "link_probe_min_bytes": 1 << 20}

    def prepare(lan: Any) -> None:
        lan.shape("p", 100 * MBIT)

    with start_net({"p": Role.PREFILL, "d": Role.DECODE}, prepare=prepare, core=core) as net:
        net.wait(net.usable)
        link = net.link()
        assert (link["transport"], link["device"]) == ("tcp", "eth0")
        assert within(net, 100 * MBIT, 0.15), link
        probes_are_few_and_small(net)
        net.lan.shape("p", 40 * MBIT)
        for _ in range(3):
            net.served(net.ask(6000, on_unavailable="fail"))
        net.wait(lambda: within(net, 40 * MBIT, 0.25), 3.0)


def probes_are_few_and_small(net: Any) -> None:
    """The age grows while nothing is sent, until a probe makes it small again; and that costs little of the link."""
    before, began_s = net.lan.bytes_sent("p"), time.monotonic()
    ages = []
    while time.monotonic() < began_s + 4.0:
        ages.append(net.link()["age_s"])
        time.sleep(0.1)
    grown = [later - sooner for sooner, later in itertools.pairwise(ages)]
    assert max(ages) > 0.5, ages
    assert max(ages) < 3.5, ages
    assert sum(step > 0 for step in grown) > sum(step < 0 for step in grown) >= 1, ages
    sent = net.lan.bytes_sent("p") - before
    assert sent < 0.5 * 4.0 * 100 * MBIT, "probes took more than half of an idle link, at one each second"


@pytest.mark.slow
@pytest.mark.parametrize(("mbit", "share"), [(100, 0.15), (1000, 0.2)])
def test_the_estimate_at_other_rates(start_net: Any, mbit: int, share: float) -> None:
    def prepare(lan: Any) -> None:
        lan.shape("p", mbit * MBIT)

    with start_net({"p": Role.PREFILL, "d": Role.DECODE}, prepare=prepare) as net:
        net.wait(net.usable)
        print(f"\n{mbit} Mbit/s, after the join: {net.link()['bytes_per_s'] / net.payload_rate(mbit * MBIT):.4f}")
        assert within(net, mbit * MBIT, share), net.link()["bytes_per_s"]
        for factor in (0.1, 1.0):
            net.lan.shape("p", factor * mbit * MBIT)
            for _ in range(3):
                net.served(net.ask(15000, on_unavailable="fail"))
                rate = net.link()["bytes_per_s"] / net.payload_rate(factor * mbit * MBIT)
                print(f"{factor * mbit} Mbit/s, after a transfer: {rate:.4f}")
            # A link faster than the engine is known by its probe: that waits for a moment without transfers.
            net.wait(partial(within, net, factor * mbit * MBIT, share), 15.0)
