"""Roles at run time in the cluster core: when they are said, to whom nothing is given meanwhile, when it ends."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.cluster_io import (
    Dispatch,
    LeaderChanged,
    ReplicaDrainRequested,
    ReplicaJoined,
    ReplicaLost,
    RoleRequested,
    SetRole,
    TimePassed,
    ViewReported,
)
from contracts.errors import Conflict, UnknownReplica
from contracts.phase import Role
from scheduling.cluster_core import ClusterCore
from scheduling.config import ClusterCoreConfig
from scheduling.role_changes import GIVE_UP_S, SAY_AGAIN_S


def joined(cluster: Any, replica_id: str, incarnation: str = "1", **view: Any) -> ReplicaJoined:
    """A replica with a data plane."""
    event: ReplicaJoined = cluster.joined(replica_id, incarnation, **view)
    identity = msgspec.structs.replace(event.identity, data_endpoints=("tcp://127.0.0.1:1",))
    return msgspec.structs.replace(event, identity=identity)


def fleet(cluster: Any, *replicas: str, **settings: Any) -> ClusterCore:
    core = ClusterCore(ClusterCoreConfig(**settings))
    for replica_id in replicas:
        core.handle(joined(cluster, replica_id), 0.0)
    return core


def said(actions: list[Any]) -> list[SetRole]:
    return [action for action in actions if isinstance(action, SetRole)]


def kinds(core: ClusterCore) -> list[str]:
    return [decision.kind for decision in reversed(core.fleet_decisions()) if decision.kind.startswith("role")]


def test_a_role_is_said_until_the_view_has_it(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    wish = RoleRequested("a", Role.MIXED, pinned=False)
    assert said(core.handle(wish, 1.0)) == [SetRole("a", Role.MIXED)]
    assert said(core.handle(wish, 1.1)) == []
    assert said(core.handle(TimePassed(), 1.0 + SAY_AGAIN_S / 2)) == []
    assert said(core.handle(TimePassed(), 1.0 + SAY_AGAIN_S)) == [SetRole("a", Role.MIXED)]
    core.handle(ViewReported(cluster.view("a", role=Role.MIXED, guarded=3)), 2.5)
    assert said(core.handle(TimePassed(), 4.0)) == []
    assert kinds(core) == ["role_requested", "role_changed"]
    assert core.fleet_decisions()[0].numbers == {"took_s": 1.5, "guarded": 3}


def test_nothing_new_goes_where_another_kind_of_work_is_to_come(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    core.handle(RoleRequested("a", Role.PREFILL), 0.1)
    for number in range(4):
        placed = [a for a in core.handle(cluster.arrived(f"r{number}"), 0.2) if isinstance(a, Dispatch)]
        assert [action.plan.replica_id for action in placed] == ["b"]
    assert {replica.replica_id: replica.closed for replica in core.snapshot(0.2).replicas} == {
        "a": "becomes prefill",
        "b": None,
    }


def test_between_the_roles_that_serve_whole_requests_it_goes_on_serving(cluster: Any) -> None:
    core = fleet(cluster, "a")
    core.handle(RoleRequested("a", Role.MIXED), 0.1)
    assert any(isinstance(action, Dispatch) for action in core.handle(cluster.arrived("r"), 0.2))


def test_a_request_that_came_during_the_change_is_placed_after_it(cluster: Any) -> None:
    core = fleet(cluster, "a")
    core.handle(RoleRequested("a", Role.DECODE), 0.1)
    assert not any(isinstance(action, Dispatch) for action in core.handle(cluster.arrived("r"), 0.2))
    actions = core.handle(ViewReported(cluster.view("a", role=Role.DECODE)), 0.3)
    assert [action.plan.replica_id for action in actions if isinstance(action, Dispatch)] == ["a"]


def test_one_that_does_not_listen_is_given_up_and_serves_in_its_old_role(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    core.handle(RoleRequested("a", Role.PREFILL), 0.0)
    times = 0
    for tenth in range(1, int(GIVE_UP_S * 10) + 5):
        core.handle(ViewReported(cluster.view("a")), tenth / 10)
        core.handle(ViewReported(cluster.view("b")), tenth / 10)
        times += len(said(core.handle(TimePassed(), tenth / 10)))
    assert times <= GIVE_UP_S / SAY_AGAIN_S
    assert kinds(core) == ["role_pinned", "role_requested", "role_given_up"]
    snapshot = next(replica for replica in core.snapshot(GIVE_UP_S).replicas if replica.replica_id == "a")
    assert (snapshot.closed, snapshot.wanted_role, snapshot.pinned) == (None, Role.ALTERNATING, False)
    assert isinstance(core.why_not_role("a", Role.DECODE), Conflict)
    core.handle(joined(cluster, "a", "2"), GIVE_UP_S + 1.0)
    assert core.why_not_role("a", Role.DECODE) is None


def test_a_pin_outlives_the_process_and_can_be_taken_off(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    core.handle(RoleRequested("a", Role.MIXED), 0.0)
    core.handle(ViewReported(cluster.view("a", role=Role.MIXED)), 0.1)
    core.handle(ReplicaLost("a", "killed"), 1.0)
    assert said(core.handle(joined(cluster, "a", "2"), 2.0)) == [SetRole("a", Role.MIXED)]
    core.handle(ViewReported(cluster.view("a", "2", role=Role.MIXED)), 2.1)
    assert said(core.handle(RoleRequested("a", Role.MIXED, pinned=False), 3.0)) == []
    core.handle(ReplicaLost("a", "killed"), 4.0)
    assert said(core.handle(joined(cluster, "a", "3"), 5.0)) == []
    assert not core.snapshot(5.0).replicas[0].pinned


def test_a_connection_that_comes_back_is_told_again(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    core.handle(RoleRequested("a", Role.MIXED, pinned=False), 0.0)
    assert said(core.handle(joined(cluster, "a"), 0.2)) == [SetRole("a", Role.MIXED)]
    core.handle(ReplicaLost("a", "its connection broke"), 0.3)
    assert said(core.handle(joined(cluster, "a"), 0.4)) == []
    assert kinds(core) == ["role_requested", "role_given_up"]


def test_refusals_name_their_reason(cluster: Any) -> None:
    core = fleet(cluster, "a", "b", layout="phased", on_unavailable="fail")
    core.handle(cluster.joined("c"), 0.0)
    assert isinstance(core.why_not_role("nobody", Role.MIXED), UnknownReplica)
    assert "no data plane" in str(core.why_not_role("c", Role.PREFILL))
    assert core.why_not_role("c", Role.ALTERNATING) is None
    core.handle(ReplicaDrainRequested("c"), 0.0)
    assert "draining" in str(core.why_not_role("c", Role.MIXED))
    core.handle(RoleRequested("a", Role.MIXED), 0.1)
    refusal = core.why_not_role("b", Role.MIXED)
    assert isinstance(refusal, Conflict)
    assert "no alternating replica" in refusal.message
    assert said(core.handle(RoleRequested("b", Role.MIXED), 0.2)) == []
    assert kinds(core)[-1] == "role_refused"
    assert "no alternating replica" in str(core.why_not_drain("b"))


@pytest.mark.parametrize(
    ("layout", "roles", "change", "allowed"),
    [
        ("auto", "pd", (0, Role.DECODE), False),
        ("auto", "pd", (0, Role.MIXED), True),
        ("disaggregated", "ppd", (0, Role.DECODE), True),
        ("disaggregated", "pd", (1, Role.ALTERNATING), False),
        ("colocated", "ma", (0, Role.PREFILL), True),
        ("colocated", "ma", (0, Role.ALTERNATING), False),
        ("phased", "am", (1, Role.PREFILL), True),
    ],
)
def test_a_fleet_that_may_not_fall_back_keeps_what_its_layout_needs(
    cluster: Any, layout: Any, roles: str, change: tuple[int, Role], allowed: bool
) -> None:
    names = {"p": Role.PREFILL, "d": Role.DECODE, "m": Role.MIXED, "a": Role.ALTERNATING}
    core = ClusterCore(ClusterCoreConfig(layout=layout, on_unavailable="fail"))
    for number, letter in enumerate(roles):
        core.handle(joined(cluster, f"r{number}", role=names[letter]), 0.0)
    assert (core.why_not_role(f"r{change[0]}", change[1]) is None) == allowed


def test_the_last_one_may_not_leave(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    assert core.why_not_drain("a") is None
    core.handle(ReplicaDrainRequested("a"), 0.0)
    assert core.why_not_drain("a") is None
    assert isinstance(core.why_not_drain("b"), Conflict)
    assert isinstance(core.why_not_drain("c"), UnknownReplica)


def test_a_router_that_another_leads_says_no_roles(cluster: Any) -> None:
    core = fleet(cluster, "a", "b")
    core.handle(RoleRequested("a", Role.MIXED), 0.1)
    # 1. another leads: the change under way is dropped, and wishes are refused by its name
    assert core.handle(LeaderChanged("router-2"), 0.2) == []
    assert said(core.handle(TimePassed(), 0.2 + SAY_AGAIN_S)) == []
    for refusal in (core.why_not_role("b", Role.MIXED), core.why_not_drain("b")):
        assert isinstance(refusal, Conflict)
        assert "router-2" in refusal.message
    assert kinds(core) == ["role_pinned", "role_requested", "role_given_up"]
    # 2. it still serves, and learns of roles from views
    core.handle(ViewReported(cluster.view("a", role=Role.MIXED)), 2.0)
    assert any(isinstance(action, Dispatch) for action in core.handle(cluster.arrived("r"), 2.1))
    assert all(not replica.pinned for replica in core.snapshot(2.1).replicas)
    # 3. it leads (again): wishes are taken
    core.handle(LeaderChanged(None), 3.0)
    assert core.why_not_role("b", Role.MIXED) is None
    assert said(core.handle(RoleRequested("b", Role.MIXED), 3.1)) == [SetRole("b", Role.MIXED)]
