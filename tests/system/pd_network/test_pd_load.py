"""Many hand-offs at once over one link: they queue, none fails, and no two replicas wait for each other in a circle.

HND-2, HND-4, XFER-3 and XFER-7 of the field bugs.
"""

from __future__ import annotations

import itertools
import random
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from contracts.phase import Role

pytestmark = [pytest.mark.system, pytest.mark.slow]

PAIR = {"p": Role.PREFILL, "d": Role.DECODE}
LINK = 25e6  # bytes/s on the wire


def ends(net: Any, asks: list[Any], deadline_s: float = 120.0) -> dict[str, int]:
    """How many ended in which way; 200s were right, the rest said 429 or 503 and when to come back."""
    counted: dict[str, int] = {}
    for asked in asks:
        end = net.end(asked, deadline_s)
        counted[end] = counted.get(end, 0) + 1
        if end != "length":
            assert asked.status in (429, 503), asked
            assert int(asked.headers["retry-after"]) >= 1
    return counted


def test_ten_clients_with_twenty_requests_each(start_net: Any) -> None:
    """HND-2: two transfers at a time, ten clients; afterwards the fleet is as quick as before."""
    transfer = {"max_concurrent_transfers": 2}
    with start_net(PAIR, prepare=lambda lan: lan.shape("p", LINK), transfer=transfer) as net:
        net.wait(net.usable)
        idle_s = statistics.median(net.served(net.ask(1000, 16)).took_s for _ in range(5))

        def client(number: int) -> list[Any]:
            choose = random.Random(number)
            asks = []
            for _ in range(20):
                asks.append(net.ask(choose.randrange(50, 2000), 16, deadline_s=120.0))
                net.end(asks[-1], 120.0)
            return asks

        with ThreadPoolExecutor(10) as pool:
            asks = list(itertools.chain(*pool.map(client, range(10))))
        counted = ends(net, asks)
        assert counted == {"length": 200}
        assert net.views()["d"]["handoffs_failed"] == 0, net.story()
        after_s = statistics.median(net.served(net.ask(1000, 16)).took_s for _ in range(5))
        assert after_s < 2.0 * idle_s + 0.5
        net.wait_whole(["p", "d"])


def test_more_than_the_decode_replica_holds(start_net: Any) -> None:
    """HND-4: room for four sequences at D, 64 requests at once: steadily on, or refused early."""
    per_request = (1000 + 200) // 16 + 1
    own = {"d": {"fake": {"num_blocks": 4 * per_request + 8}}}
    with start_net(PAIR, prepare=lambda lan: lan.shape("p", LINK), own=own) as net:
        net.wait(net.usable)
        single_s = net.served(net.ask(1000, 200)).took_s
        asks = [net.ask(1000, 200, on_unavailable="fail", deadline_s=170.0) for _ in range(64)]
        done_at = watch(asks, 160.0)
        counted = ends(net, asks, 1.0)
        assert counted.keys() <= {"length", "overloaded", "unavailable"}, counted
        assert counted["length"] >= 8, counted
        gaps = [later - sooner for sooner, later in itertools.pairwise(done_at)]
        assert max(gaps) < 4.0 * single_s + 2.0, gaps
        net.wait_whole(["p", "d"])
        net.served(net.ask(1000, 8, on_unavailable="fail"))


def watch(asks: list[Any], deadline_s: float) -> list[float]:
    """When each ended, in order."""
    began_s, done_at, left = time.monotonic(), [], list(asks)
    while left and time.monotonic() < began_s + deadline_s:
        for asked in [one for one in left if not one.thread.is_alive()]:
            left.remove(asked)
            done_at.append(time.monotonic())
        time.sleep(0.02)
    assert not left, f"{len(left)} of {len(asks)} without an end"
    return done_at


def test_each_works_alone_and_all_at_once(start_net: Any) -> None:
    """XFER-3: 1, 8, 32, 128 at once; no hand-off fails."""
    with start_net(PAIR, prepare=lambda lan: lan.shape("p", LINK)) as net:
        net.wait(net.usable)
        for count in (1, 8, 32, 128):
            asks = [net.ask(500, 8, deadline_s=120.0) for _ in range(count)]
            counted = ends(net, asks)
            assert counted.keys() <= {"length", "overloaded"}, counted
            assert counted["length"] >= min(count, 32), counted
        for name in ("p", "d"):
            assert net.views()[name]["handoffs_failed"] == 0, net.story()
        net.wait_whole(["p", "d"])


def test_the_first_request_costs_no_more_than_the_next(start_net: Any) -> None:
    """XFER-7: links were warmed up before anybody asked."""
    with start_net(PAIR, prepare=lambda lan: lan.shape("p", LINK)) as net:
        net.wait(net.usable)
        took = [net.served(net.ask(1000, on_unavailable="fail")).took_s for _ in range(5)]
        assert took[0] <= 5.0 * statistics.median(took[1:]) + 0.2, took
