"""Hand-offs that fail at each step: either leg's end is the other's, and the request goes on or ends by policy."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClusterAction,
    Dispatch,
    DispatchPrefill,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RefuseRequest,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    TimePassed,
    ViewReported,
)
from contracts.errors import HandoffFailed, InvalidRequest, Overloaded
from contracts.phase import Role
from contracts.plan import Outcome
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import assert_nothing_placed, check_cluster_invariants

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
FULL = Overloaded("full", retry_after_s=1.0).info()
BROKEN = HandoffFailed("3 of 4 blocks arrived", retry_after_s=1.0).info()
STEPS = ("reserving", "prefilling", "streaming")


def dispatched(actions: list[ClusterAction]) -> str:
    """Where the one placement among these goes."""
    [(_, where)] = [told_action for told_action in told(actions) if told_action[0] == "dispatch"]
    return where


def told(actions: list[ClusterAction]) -> list[tuple[str, ...]]:
    """(kind, where) of all actions but leases."""
    found: list[tuple[str, ...]] = []
    for action in actions:
        match action:
            case Dispatch(_, plan):
                found.append(("dispatch", f"{plan.prefill_replica_id or ''}->{plan.replica_id}"))
            case DispatchPrefill(_, _, replica_id):
                found.append(("prefill", replica_id))
            case CancelOn(replica_id):
                found.append(("cancel", replica_id))
            case RefuseRequest(_, error):
                found.append(("refuse", error.code))
    return found


def bring(core: ClusterCore, cluster: Any, step: str) -> None:
    """A request over p and d at one step of its life."""
    core.handle(cluster.arrived("r"), 0.0)
    if step != "reserving":
        core.handle(KVReserved("r", 0), 0.0)
    if step == "streaming":
        core.handle(FirstTokenSent("r"), 0.1)
        core.handle(PrefillFinished("r"), 0.1)


@pytest.mark.parametrize("step", STEPS)
def test_loss_of_the_decode_replica_ends_the_prefill_leg_and_the_request_goes_on(cluster: Any, step: str) -> None:
    core = cluster.pools(cluster.core(), "p", "de")
    core.handle(ViewReported(cluster.view("e", role=Role.DECODE, slack=1.0)), 0.0)
    bring(core, cluster, step)
    actions = core.handle(ReplicaLost("d", "silent", {"r": 1} if step == "streaming" else {}), 0.2)
    assert told(actions) == [("cancel", "p"), ("dispatch", "p->e")]
    check_cluster_invariants(core)
    assert told(core.handle(KVReserved("r", 0), 0.2)) == [("prefill", "p")]
    core.handle(RequestEnded("r", DONE), 1.0)
    assert_nothing_placed(core)


@pytest.mark.parametrize("step", STEPS)
def test_loss_of_the_prefill_replica(cluster: Any, step: str) -> None:
    core = cluster.pools(cluster.core(), "pq", "d")
    bring(core, cluster, step)
    actions = core.handle(ReplicaLost("p", "silent"), 0.2)
    # once the first token is out only the decode leg says what becomes of the request
    assert told(actions) == ([] if step == "streaming" else [("cancel", "d"), ("dispatch", "q->d")])
    check_cluster_invariants(core)
    core.handle(ClientLeft("r"), 0.3)
    assert_nothing_placed(core)


@pytest.mark.parametrize(("by", "other"), [("d", "p"), ("p", "d")])
@pytest.mark.parametrize("step", STEPS[1:])
def test_a_failed_hand_off_is_computed_anew_or_ends_by_policy(cluster: Any, by: str, other: str, step: str) -> None:
    if (by, step) == ("p", "streaming"):
        return  # not asked any more, see below
    for policy in ("recompute", "fail"):
        core = cluster.pools(cluster.core(on_handoff_failure=policy), "p", "d")
        bring(core, cluster, step)
        actions = core.handle(RequestRefused("r", by, BROKEN, tokens_sent=int(step == "streaming")), 0.2)
        if policy == "fail":
            assert told(actions) == [("cancel", other), ("refuse", "kv_handoff_failed")]
        else:
            # the only pair failed: computed whole on the one that is known to live
            assert told(actions) == [("cancel", other), ("dispatch", f"->{by}")]
            assert core.decisions()[0].plan is not None
            assert "hand-off failed" in (core.decisions()[0].plan.fallback or "")
            core.handle(RequestEnded("r", DONE), 1.0)
        assert core.snapshot(1.0).counters.handoff_failures == 1
        assert_nothing_placed(core)


def test_another_pair_is_tried_and_then_no_hand_off_at_all(cluster: Any) -> None:
    """What fails between two pairs is answered by one replica, if the request may be, and says so."""
    core = cluster.pools(cluster.core(), "pq", "de")
    bring(core, cluster, "prefilling")
    assert told(core.handle(RequestRefused("r", "d", BROKEN), 0.1)) == [("cancel", "p"), ("dispatch", "q->d")]
    core.handle(KVReserved("r", 0), 0.1)
    assert told(core.handle(RequestRefused("r", "d", BROKEN), 0.2)) == [("cancel", "q"), ("dispatch", "->d")]
    check_cluster_invariants(core)
    assert core.decisions()[0].plan is not None
    assert "hand-off failed" in (core.decisions()[0].plan.fallback or "")
    core.handle(RequestEnded("r", DONE), 1.0)
    assert_nothing_placed(core)


def test_the_last_placement_is_without_a_hand_off_also_after_a_loss(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "pq", "def")
    bring(core, cluster, "prefilling")
    actions = core.handle(RequestRefused("r", "d", BROKEN), 0.1)
    giver, _, taker = dispatched(actions).partition("->")
    again = dispatched(core.handle(ReplicaLost(taker, "silent"), 0.2))
    assert giver
    assert again.startswith("->")
    check_cluster_invariants(core)


def test_a_request_that_may_not_fall_back_is_told_after_its_last_hand_off(cluster: Any) -> None:
    core = cluster.pools(cluster.core(on_unavailable="fail"), "pq", "de")
    bring(core, cluster, "prefilling")
    pairs, taker = ["p->d"], "d"
    for now in (0.1, 0.2):
        pairs.append(dispatched(core.handle(RequestRefused("r", taker, BROKEN), now)))
        taker = pairs[-1].partition("->")[2]
        core.handle(KVReserved("r", 0), now)
        check_cluster_invariants(core)
    assert len(set(pairs)) == 3, "each time between two others"
    assert told(core.handle(RequestRefused("r", taker, BROKEN), 0.3))[-1] == ("refuse", "kv_handoff_failed")
    assert_nothing_placed(core)


def test_the_same_pair_again_when_nothing_else_is_allowed(cluster: Any) -> None:
    core = cluster.pools(cluster.core(on_unavailable="fail"), "p", "d")
    bring(core, cluster, "prefilling")
    assert told(core.handle(RequestRefused("r", "d", BROKEN), 0.1)) == [("cancel", "p")]
    fresh = cluster.view("p", role=Role.PREFILL, links=(cluster.link("d"),), acked_submit_index=1)
    assert told(core.handle(ViewReported(fresh), 0.2)) == [("dispatch", "p->d")]


@pytest.mark.parametrize(("by", "other"), [("d", "p"), ("p", "d")])
def test_a_full_leg_ends_the_other_and_waits_for_room(cluster: Any, by: str, other: str) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    bring(core, cluster, "prefilling")
    assert told(core.handle(RequestRefused("r", by, FULL), 0.1)) == [("cancel", other)]
    assert core.pending_count == 1
    check_cluster_invariants(core)
    role = Role.DECODE if by == "d" else Role.PREFILL
    links = () if by == "d" else (cluster.link("d"),)
    fresh = ViewReported(cluster.view(by, role=role, links=links, acked_submit_index=1))
    assert told(core.handle(fresh, 0.2)) == [("dispatch", "p->d")]
    assert told(core.handle(RequestRefused("r", by, FULL), 0.3)) == [("cancel", other), ("refuse", "overloaded")]
    assert_nothing_placed(core)


def test_what_is_wrong_anywhere_reaches_the_client_and_ends_both_legs(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    bring(core, cluster, "prefilling")
    wrong = RequestRefused("r", "p", InvalidRequest("no").info())
    assert told(core.handle(wrong, 0.1)) == [("cancel", "d"), ("refuse", "invalid_request")]
    assert_nothing_placed(core)


def test_the_prefill_leg_has_no_say_after_the_first_token(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    bring(core, cluster, "streaming")
    assert told(core.handle(RequestRefused("r", "p", BROKEN), 0.2)) == []
    assert told(core.handle(RequestRefused("r", "d", BROKEN, tokens_sent=1), 0.2))[0] == ("cancel", "p")


def test_a_new_process_of_the_prefill_replica_needs_its_link_anew(cluster: Any) -> None:
    core = cluster.pools(cluster.core(on_unavailable="fail"), "p", "d")
    bring(core, cluster, "prefilling")
    gone = told(core.handle(cluster.joined("p", incarnation="2", role=Role.PREFILL), 0.1))
    assert gone == [("cancel", "d"), ("refuse", "unavailable")]
    linked = cluster.view("p", incarnation="2", role=Role.PREFILL, links=(cluster.link("d"),))
    core.handle(ViewReported(linked), 0.2)
    assert told(core.handle(cluster.arrived("s"), 0.2)) == [("dispatch", "p->d")]
    # and a new process of the decode replica is not the peer that the link was made to
    assert ("refuse", "unavailable") in told(core.handle(cluster.joined("d", incarnation="2", role=Role.DECODE), 0.3))
    assert told(core.handle(cluster.arrived("t"), 0.3)) == [("refuse", "unavailable")]
    assert_nothing_placed(core)


def test_pools_that_come_apart_tell_those_who_wait_at_once(cluster: Any) -> None:
    core = cluster.core(on_unavailable="fail")
    core.handle(cluster.joined("d", role=Role.DECODE, slack=9.0, free_blocks=0), 0.0)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=(cluster.link("d"),)), 0.0)
    core.handle(cluster.arrived("r"), 0.0)
    assert core.pending_count == 1
    down = cluster.view("p", role=Role.PREFILL, links=(cluster.link("d", why_not="no answer"),))
    assert told(core.handle(ViewReported(down), 0.1)) == [("refuse", "unavailable")]


def test_a_reservation_that_never_comes_is_504_on_both_legs(cluster: Any) -> None:
    core = cluster.pools(cluster.core(first_token_deadline_s=10.0), "p", "d")
    bring(core, cluster, "reserving")
    assert told(core.handle(TimePassed(), 10.0)) == [("cancel", "d"), ("cancel", "p"), ("refuse", "deadline_exceeded")]
    assert_nothing_placed(core)
