"""Random fleets, random event orders: what must hold in the cluster core after every event."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.cluster_io import (
    ClientLeft,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    FirstTokenSent,
    GrantLease,
    PrefillFinished,
    RefuseRequest,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    TimePassed,
    ViewReported,
)
from contracts.errors import InvalidRequest, Overloaded, Unavailable
from contracts.phase import Layout, Role
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import check_cluster_invariants
from scheduling.config import ClusterCoreConfig

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
REPLICAS = ("a", "b", "c")
ERRORS = (Overloaded("full"), Unavailable("draining"), InvalidRequest("no"))

numbers = st.integers(0, 2**16)
steps = st.lists(st.tuples(st.sampled_from("aaaaafpevvvjlrct"), numbers, numbers, st.floats(0, 2)), max_size=60)


def event_of(cluster: Any, kind: str, x: int, y: int, known: list[str], name: str) -> ClusterEvent:
    """An event of one kind, its details drawn from two numbers; requests are old ones, or unknown."""
    replica, incarnation = REPLICAS[x % 3], str(y % 2)
    request = known[y % len(known)] if known else "unknown"
    slack = (None, -0.2, 0.05, 0.3, 3.0)[y % 5]
    changes = {
        "slack": slack,
        "role": Role.MIXED if replica == "c" and x % 2 else Role.ALTERNATING,
        "draining": y % 11 == 0,
        "waiting": x % 4,
        "backlog_s": (x % 4) * 0.1,
        "free_blocks": (1000, 20, 0)[x % 3],
        "acked_submit_index": x % 5,
        "step_age_s": 60.0 if y % 13 == 0 else 0.0,
    }
    match kind:
        case "a":
            slo = Slo(ttft_s=(0.05, 0.5, 5.0)[y % 3], tpot_s=0.1)
            return cluster.arrived(name, (1, 50, 400, 3000)[x % 4], slo=slo, num_sequences=1 + y % 3)  # type: ignore[no-any-return]
        case "f":
            return FirstTokenSent(request)
        case "p":
            return PrefillFinished(request)
        case "e":
            return RequestEnded(request, DONE)
        case "v":
            return ViewReported(cluster.view(replica, incarnation, **changes))
        case "j":
            return cluster.joined(replica, incarnation, **changes)  # type: ignore[no-any-return]
        case "l":
            return ReplicaLost(replica, "silent")
        case "r":
            return RequestRefused(request, replica, ERRORS[x % 3].info())
        case "c":
            return ClientLeft(request)
        case _:
            return TimePassed()


def run(cluster: Any, script: list[tuple[str, int, int, float]]) -> list[list[ClusterAction]]:
    """Drive a core through the script, checking as it goes; returns all actions."""
    core = ClusterCore(ClusterCoreConfig(max_pending=3, pending_deadline_s=4.0, first_token_deadline_s=8.0))
    now, known, trace = 0.0, list[str](), list[list[ClusterAction]]()
    arrived, ended = set[str](), Counter[str]()
    for number, (kind, x, y, after) in enumerate(script):
        now += after * (x % 3) / 4
        event = event_of(cluster, kind, x, y, known, f"r{number}")
        open_before = core.snapshot(now)
        if kind == "a":
            known.append(f"r{number}")
            arrived.add(f"r{number}")
        placed_before = set(core.placement.requests)
        actions = core.handle(event, now)
        trace.append(actions)
        check_cluster_invariants(core)
        check_leases(core, actions, now)
        if isinstance(event, RequestEnded | ClientLeft) and event.request_id in placed_before:
            ended[event.request_id] += 1
        ended.update(action.request_id for action in actions if isinstance(action, RefuseRequest))
        if kind == "a":
            idle = [r.replica_id for r in open_before.replicas if is_idle_and_open(r)]
            assert not idle or dispatched(actions) == {f"r{number}"}, f"{idle} stood idle: {actions}"
    assert all(count == 1 for count in ended.values()), ended
    assert set(core.placement.requests) == arrived - set(ended)
    finish(core, now)
    return trace


def finish(core: ClusterCore, now: float) -> None:
    """However it stands, time alone ends every request that has not begun to stream."""
    core.handle(TimePassed(), now + 100.0)
    check_cluster_invariants(core)
    assert core.pending_count == 0
    for request_id in list(core.placement.requests):
        core.handle(RequestEnded(request_id, DONE), now + 100.0)
    assert all(replica.placed == 0 and replica.unacked == 0 for replica in core.snapshot(now + 100.0).replicas)


def is_idle_and_open(replica: Any) -> bool:
    empty = replica.view.running == replica.view.waiting == replica.unacked == 0
    return bool(empty and replica.closed is None and replica.view.num_blocks == 1000)


def dispatched(actions: list[ClusterAction]) -> set[str]:
    return {action.request_id for action in actions if isinstance(action, Dispatch)}


def check_leases(core: ClusterCore, actions: list[ClusterAction], now: float) -> None:
    """A phased dispatch comes with its lease; in each macro instance one replica is open for prefill."""
    granted: set[str] = set()
    for action in actions:
        if isinstance(action, GrantLease):
            granted.add(action.replica_id)
        if isinstance(action, Dispatch) and action.plan.layout is Layout.PHASED:
            assert action.plan.replica_id in granted
    snapshot = core.snapshot(now)
    replicas = {replica.replica_id: replica for replica in snapshot.replicas}
    for macro in snapshot.macro_instances:
        if any(replicas[member].closed is None for member in macro.members):
            assert macro.pointer is not None
            assert replicas[macro.pointer].open_for_prefill
            assert replicas[macro.pointer].closed is None


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps)
def test_every_request_ends_once_whatever_happens(cluster: Any, script: list[tuple[str, int, int, float]]) -> None:
    start = [("j", 0, 3, 0.0), ("j", 1, 3, 0.0), ("j", 5, 3, 0.0)]
    assert run(cluster, start + script) == run(cluster, start + script)
