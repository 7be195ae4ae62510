"""Turns and leases of several macro instances: who is open, who is asked first, and what a move leaves alone."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from contracts.cluster_io import (
    CancelOn,
    ClusterAction,
    Dispatch,
    DrainReplica,
    FirstTokenSent,
    GrantLease,
    PrefillFinished,
    RefuseRequest,
    ReplicaDrainRequested,
    ReplicaLost,
    RequestEnded,
    RevokeLease,
    TimePassed,
    ViewReported,
)
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import assert_nothing_placed, check_cluster_invariants
from scheduling.macro_config import MacroConfig

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
TWO = MacroConfig(least=2, most=3, cooldown_s=5.0)
"""Four replicas are two macro instances of two, three are one."""


def placed(actions: list[ClusterAction]) -> list[str]:
    return [action.plan.replica_id for action in actions if isinstance(action, Dispatch)]


def granted(actions: list[ClusterAction]) -> set[str]:
    return {action.replica_id for action in actions if isinstance(action, GrantLease)}


def revoked(actions: list[ClusterAction]) -> set[str]:
    return {action.replica_id for action in actions if isinstance(action, RevokeLease)}


def members(core: ClusterCore, now: float) -> list[tuple[str, ...]]:
    return [macro.members for macro in core.snapshot(now).macro_instances]


def pointers(core: ClusterCore, now: float) -> list[str | None]:
    return [macro.pointer for macro in core.snapshot(now).macro_instances]


def busy(cluster: Any, core: ClusterCore, names: str, now: float, slack: float = 3.0) -> None:
    """All of these run one stream with that slack."""
    for name in names:
        core.handle(ViewReported(cluster.view(name, slack=slack)), now)


def test_every_macro_instance_has_one_open_for_prefill(cluster: Any) -> None:
    core = cluster.core("a", "b", "c", "d", macro=TWO)
    assert members(core, 0.0) == [("a", "c"), ("b", "d")]
    snapshot = core.snapshot(0.0)
    assert {replica.replica_id for replica in snapshot.replicas if replica.open_for_prefill} == {"a", "b"}
    assert pointers(core, 0.0) == ["a", "b"]
    assert [replica.macro_instance for replica in snapshot.replicas] == ["m1", "m2", "m1", "m2"]
    # leases are renewed as time passes, for both and for nobody else
    busy(cluster, core, "abcd", 1.0)
    assert granted(core.handle(TimePassed(), 1.2)) == {"a", "b"}


def test_requests_stay_with_one_macro_instance_while_another_gains_them_little(cluster: Any) -> None:
    """A TTFT target of 2 s and `stay` of 0.25: 0.5 s of backlog."""
    macro = MacroConfig(least=2, most=3, stay=0.25)
    core = cluster.core("a", "b", "c", "d", macro=macro)
    busy(cluster, core, "abcd", 0.1)
    slo = Slo(ttft_s=2.0, tpot_s=0.1)
    where = [placed(core.handle(cluster.arrived(f"r{i}", 200, slo=slo), 0.2))[0] for i in range(6)]
    assert where == ["a", "a", "a", "b", "b", "b"]
    assert core.decisions()[0].plan.macro_instance == "m2"
    assert core.decisions()[-1].plan.macro_instance == "m1"


def test_a_full_macro_instance_leaves_the_request_to_another(cluster: Any) -> None:
    core = cluster.core("a", "b", "c", "d", macro=TWO)
    busy(cluster, core, "ac", 0.1, slack=0.05)
    busy(cluster, core, "bd", 0.1, slack=0.5)
    assert placed(core.handle(cluster.arrived("r", 100), 0.2)) == ["b"]
    assert placed(core.handle(cluster.arrived("s", 300), 0.2)) == ["b"]
    assert placed(core.handle(cluster.arrived("t", 300), 0.2)) == ["d"]  # the turn went on in the second
    assert pointers(core, 0.2) == ["a", "d"]
    assert core.handle(cluster.arrived("u", 600), 0.2) == []  # nobody passes, in either
    assert core.pending_count == 1


def test_one_replica_degenerates_to_one_that_serves_alone(cluster: Any) -> None:
    core = cluster.core("a")
    for number in range(3):
        assert placed(core.handle(cluster.arrived(f"r{number}"), 0.1)) == ["a"]
    assert members(core, 0.1) == [("a",)]


def test_a_merge_and_a_migration_leave_streams_and_windows_alone(cluster: Any) -> None:
    """Three steps: placed in the second macro instance, the first one loses a member, the two are one again."""
    core = cluster.core("a", "b", "c", "d", macro=TWO)
    busy(cluster, core, "ac", 0.1, slack=0.05)
    busy(cluster, core, "bd", 0.1)
    # 1. streams and an open window on b, in the second
    assert placed(core.handle(cluster.arrived("r", 100), 0.2)) == ["b"]
    core.handle(FirstTokenSent("r"), 0.4)
    assert placed(core.handle(cluster.arrived("s", 500), 0.5)) == ["b"]
    # 2. one of the first goes: the two fit into one now, but wait
    assert members(core, 0.5) == [("a", "c"), ("b", "d")]
    actions = core.handle(ReplicaLost("c", "silent"), 0.6)
    assert members(core, 0.6) == [("a",), ("b", "d")]
    assert not any(isinstance(action, CancelOn | RefuseRequest | Dispatch) for action in actions)
    # 3. merged: nothing is said about the requests, b keeps the lease for the window it has, the turn is a's
    for tick in range(1, 6):
        for name in "abd":
            waits = {"waiting": 1, "backlog_s": 0.3} if name == "b" else {}
            core.handle(ViewReported(cluster.view(name, slack=3.0, acked_submit_index=2, **waits)), 0.6 + tick)
    actions = core.handle(TimePassed(), 5.7)
    assert members(core, 5.7) == [("a", "b", "d")]
    assert pointers(core, 5.7) == ["a"]
    assert not any(isinstance(action, CancelOn | RefuseRequest | Dispatch) for action in actions)
    assert revoked(actions) == set()
    held = {replica.replica_id for replica in core.snapshot(5.7).replicas if replica.open_for_prefill}
    assert held == {"a", "b"}
    assert core.fleet_decisions()[0].kind == "macro_merge"
    # 4. its window is over: the lease is withdrawn, and both requests end where they ran
    core.handle(PrefillFinished("s"), 5.8)
    actions = core.handle(ViewReported(cluster.view("b", slack=3.0, acked_submit_index=2)), 5.8)
    assert revoked(actions) == {"b"}
    for name in ("r", "s"):
        core.handle(RequestEnded(name, DONE), 6.0)
    assert_nothing_placed(core)


def test_a_lease_message_that_is_lost_ends_in_decode_and_is_said_again(cluster: Any) -> None:
    """The core counts what it said, never longer than `lease_s`, and says it again before that."""
    core = cluster.core("a", "b", lease_s=2.0)
    said_at = [0.0]
    for tick in range(1, 60):
        now = tick / 10
        for event in (
            ViewReported(cluster.view("b", slack=3.0)),
            ViewReported(cluster.view("a", slack=3.0)),
            TimePassed(),
        ):
            if granted(core.handle(event, now)):
                said_at.append(now)
    gaps = [later - earlier for earlier, later in pairwise(said_at)]
    assert gaps == pytest.approx([1.05] * len(gaps), abs=0.06)
    assert len(gaps) >= 5


def test_a_lost_turn_goes_to_the_next_of_the_same_macro_instance(cluster: Any) -> None:
    core = cluster.core("a", "b", "c", "d", macro=TWO)
    core.handle(ViewReported(cluster.view("a", draining=True)), 0.2)
    assert pointers(core, 0.2) == ["c", "b"]
    assert members(core, 0.2) == [("c",), ("b", "d")]  # who drains takes no turns
    check_cluster_invariants(core)


def test_the_turn_goes_on_when_a_view_is_too_old_whatever_event_comes(cluster: Any) -> None:
    """No event says that time has made a view old; the next one of any kind notices."""
    core = cluster.core("a", "b", "c", "d", macro=TWO, view_stale_s=2.0)
    busy(cluster, core, "bcd", 1.5)
    assert pointers(core, 1.5) == ["a", "b"]
    actions = core.handle(FirstTokenSent("unknown"), 2.1)
    assert pointers(core, 2.1) == ["c", "b"]
    assert "c" in granted(actions)
    assert "a" in revoked(actions)
    check_cluster_invariants(core)


def test_a_replica_that_is_asked_to_leave_gets_nothing_new_and_is_told_until_it_says_so(cluster: Any) -> None:
    core = cluster.core("a", "b")
    assert placed(core.handle(cluster.arrived("r"), 0.1)) == ["a"]
    # 1. told at once; what it has goes on, with the lease that it needs for it
    actions = core.handle(ReplicaDrainRequested("a"), 0.2)
    assert [action for action in actions if isinstance(action, DrainReplica)] == [DrainReplica("a")]
    assert revoked(actions) == set()
    assert members(core, 0.2) == [("b",)]
    assert placed(core.handle(cluster.arrived("s"), 0.3)) == ["b"]
    assert core.handle(ReplicaDrainRequested("a"), 0.3) == []
    # 2. told again until its view says it
    assert DrainReplica("a") in core.handle(TimePassed(), 0.5)
    core.handle(ViewReported(cluster.view("a", draining=True, acked_submit_index=1)), 0.6)
    assert not any(isinstance(action, DrainReplica) for action in core.handle(TimePassed(), 0.7))
    # 3. it finishes and goes
    for name in ("r", "s"):
        core.handle(FirstTokenSent(name), 0.8)
        core.handle(RequestEnded(name, DONE), 0.9)
    core.handle(ReplicaLost("a", "drained"), 1.0)
    assert_nothing_placed(core)
    assert [d.kind for d in core.fleet_decisions()] == ["macro_leave", "drain"]
    assert core.fleet_decisions()[1].numbers == {"requests": 1}


def test_draining_the_last_replica_refuses_what_waits(cluster: Any) -> None:
    core = cluster.core("a")
    busy(cluster, core, "a", 0.1, slack=0.01)
    core.handle(cluster.arrived("r"), 0.2)
    assert core.pending_count == 1
    actions = core.handle(ReplicaDrainRequested("a"), 0.3)
    assert [action.error.status for action in actions if isinstance(action, RefuseRequest)] == [503]
    assert_nothing_placed(core)
    assert core.handle(ReplicaDrainRequested("nobody"), 0.4) == []


def test_a_replica_that_was_lost_and_comes_back_with_a_lease_out_of_turn_is_told(cluster: Any) -> None:
    core = cluster.core("a", "b")
    core.handle(ReplicaLost("a", "silent"), 0.5)
    assert pointers(core, 0.5) == ["b"]
    assert revoked(core.handle(cluster.joined("a", lease_left_s=1.5), 0.6)) == {"a"}
