"""The cable is pulled without a word at each step of a hand-off, and between them; then it is plugged in again.

No reset, no error: only deadlines of our own notice. `Lan.part` cuts one pair and leaves the others, `Lan.cut` pulls
one host's cable.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.system

SLOW = 1e6  # bytes/s on the wire
LONG = 6000  # tokens: 3 MB of KV, 3 s on the slow link
NOTICED_S = 20.0


@contextlib.contextmanager
def parted(pair: Any, one: str, other: str | None = None) -> Iterator[None]:
    pair.lan.part(one, other)
    try:
        yield
    finally:
        pair.lan.rejoin(one, other)


def is_used_again(pair: Any) -> None:
    """The link comes up by itself, and the next hand-off goes over it."""
    pair.lan.shape("p", None)
    pair.wait(pair.usable, 30.0)
    asked = pair.ask(1000, on_unavailable="fail")
    with pair.crossed(1000 * 512):
        pair.served(asked)
    assert asked.headers["x-phaseserve-layout"] == "disaggregated"


def test_idle(pair: Any) -> None:
    with parted(pair, "p", "d"):
        pair.wait(lambda: not pair.usable(), NOTICED_S)
        assert "silent" in pair.link()["why_not"] or "did not answer" in pair.link()["why_not"], pair.link()
        refused = pair.ask(500, on_unavailable="fail")
        assert pair.end(refused) == "unavailable"
        assert refused.status == 503
        colocated = pair.served(pair.ask(500))
        assert colocated.headers["x-phaseserve-layout"] != "disaggregated"
        assert pair.last_plan()["fallback"]
    is_used_again(pair)


def test_in_mid_transfer(pair: Any) -> None:
    failed = pair.views()["d"]["handoffs_failed"]
    pair.lan.shape("p", SLOW)
    asked = pair.ask(LONG)
    pair.wait_sent(1 << 20)
    with parted(pair, "p", "d"):
        pair.served(asked, 40.0)
        assert asked.took_s < 30.0
    pair.wait(lambda: pair.views()["d"]["handoffs_failed"] == failed + 1)
    is_used_again(pair)


@pytest.mark.slow
def test_before_the_first_byte(pair: Any) -> None:
    """D has reserved and P's prompt queues behind another one."""
    pair.lan.shape("p", SLOW)
    first = pair.ask(LONG)
    pair.wait_sent(64 << 10)
    others = [pair.ask(500), pair.ask(500)]
    pair.wait(lambda: pair.views()["d"]["receiving"] >= 2)
    with parted(pair, "p", "d"):
        for asked in (first, *others):
            pair.served(asked, 60.0)
    is_used_again(pair)


@pytest.mark.slow
def test_after_the_first_token(pair: Any) -> None:
    """All is computed, the client has its first token, and most of the KV is still on its way."""
    pair.lan.shape("p", SLOW)
    asked = pair.ask(LONG, 40)
    pair.wait(lambda: bool(asked.text))
    with parted(pair, "p", "d"):
        pair.served(asked, 60.0)
    is_used_again(pair)


@pytest.mark.slow
def test_while_decoding(pair: Any) -> None:
    """The hand-off is over: nobody needs the link."""
    asked = pair.ask(500, 1500)
    pair.wait(lambda: pair.views()["d"]["running"] == 1 and not pair.views()["p"]["sending"])
    with parted(pair, "p", "d"):
        pair.served(asked, 60.0)
    assert asked.headers["x-phaseserve-layout"] == "disaggregated"
    is_used_again(pair)


@pytest.mark.slow
def test_for_a_moment(pair: Any) -> None:
    """Shorter than any deadline: TCP mends it, nothing is lost and nothing is computed twice."""
    pair.lan.shape("p", SLOW)
    before = pair.views()["d"]["handoffs_failed"]
    asked = pair.ask(LONG)
    pair.wait_sent(1 << 20)
    with parted(pair, "p", "d"):
        time.sleep(0.5)
    pair.served(asked, 60.0)
    assert pair.views()["d"]["handoffs_failed"] == before
    assert asked.headers["x-phaseserve-layout"] == "disaggregated"


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["p", "d"])
def test_a_whole_host_is_gone(pair: Any, victim: str) -> None:
    """Its cable is pulled in mid-transfer: neither its peer nor the router hears from it."""
    pair.lan.shape("p", SLOW)
    asked = pair.ask(LONG, 40)
    pair.wait_sent(1 << 20)
    pair.lan.cut(victim)
    assert pair.end(asked, 60.0) == "length"
    pair.lan.mend(victim)
    pair.wait_whole(["p", "d"])
    is_used_again(pair)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["p", "d"])
def test_only_the_router_is_out_of_reach(pair: Any, victim: str) -> None:
    """In mid-transfer, while the pair still reaches each other: the router goes on with whom it reaches."""
    pair.lan.shape("p", SLOW)
    asked = pair.ask(LONG, 40)
    pair.wait_sent(1 << 20)
    with parted(pair, victim):
        assert pair.end(asked, 60.0) == "length"
        pair.wait(lambda: victim not in pair.views(), NOTICED_S)
    pair.wait_whole(["p", "d"])
    is_used_again(pair)


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["p", "d"])
def test_only_the_router_is_out_of_reach_while_idle(pair: Any, victim: str) -> None:
    with parted(pair, victim):
        pair.wait(lambda: victim not in pair.views(), NOTICED_S)
        refused = pair.ask(200, on_unavailable="fail")
        assert pair.end(refused) == "unavailable"
        pair.served(pair.ask(200))
    pair.wait_whole(["p", "d"])
    is_used_again(pair)
