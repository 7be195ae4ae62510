"""Times and sizes that the simulator has of rooms beside it, which it must not import, are the live ones."""

from __future__ import annotations

from kvtransfer import sender
from replica.config import LoopConfig
from replica.loop import RENEW_S
from router.config import RouterConfig
from simulator.fleet import ROUTER_SILENCE_S
from simulator.observer import RouterTimes
from simulator.scenarios import small
from simulator.transfers import AT_LEAST_BYTES, MOVING_S


def test_the_router_ticks_and_loses_silent_replicas_as_it_does_live() -> None:
    live, simulated = RouterConfig(model="m", replicas=("tcp://127.0.0.1:1",)), RouterTimes()
    assert (simulated.tick_s, simulated.silence_s) == (live.tick_s, live.silence_s)
    assert simulated.hello_s == live.heartbeat_s, "after which a link that was lost is tried again"


def test_a_replica_says_how_it_is_and_gives_routers_up_as_it_does_live() -> None:
    live = LoopConfig()
    assert small(mixed=1).heartbeat_s == live.heartbeat_s
    assert live.router_silence_s == ROUTER_SILENCE_S


def test_hand_offs_are_renewed_and_tell_the_rate_of_their_link_as_they_do_live() -> None:
    assert RENEW_S == MOVING_S
    assert AT_LEAST_BYTES == sender.AT_LEAST_BYTES
