"""Random fleets and event orders: what holds of macro instances in the cluster core after every event."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.cluster_io import (
    ClientLeft,
    ClusterAction,
    ClusterEvent,
    Dispatch,
    DispatchPrefill,
    FirstTokenSent,
    GrantLease,
    PrefillFinished,
    ReplicaDrainRequested,
    ReplicaLost,
    RequestEnded,
    RevokeLease,
    RoleRequested,
    TimePassed,
    ViewReported,
)
from contracts.phase import Layout, Role
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import check_cluster_invariants
from scheduling.config import ClusterCoreConfig
from scheduling.macro_config import MacroConfig

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
MACRO = MacroConfig(least=2, most=4, cooldown_s=3.0, window_s=4.0, propose_every_s=5.0)
ROLES = (Role.ALTERNATING, Role.ALTERNATING, Role.ALTERNATING, Role.MIXED, Role.DECODE, Role.PREFILL)

numbers = st.integers(0, 2**16)
steps = st.lists(st.tuples(st.sampled_from("jjjjvvvvvaaaafpecltttdr"), numbers, numbers, st.floats(0, 1)), max_size=70)


def event_of(cluster: Any, kind: str, x: int, y: int, known: list[str], name: str) -> ClusterEvent:
    """An event of one kind about one of twelve replicas or a known request."""
    replica, incarnation = f"r{x % 12:02d}", str(y % 7 == 0)
    request = known[y % len(known)] if known else "unknown"
    changes = {
        "slack": (None, -0.2, 0.05, 0.3, 3.0)[y % 5],
        "role": ROLES[y % 6] if y % 3 else Role.ALTERNATING,
        "draining": y % 19 == 0,
        "waiting": x % 4 // 3,
        "backlog_s": (x % 4 // 3) * 0.2,
        "step_age_s": 60.0 if y % 13 == 0 else 0.0,
        "acked_submit_index": x % 5,
    }
    match kind:
        case "j":
            return cluster.joined(replica, incarnation, **changes)  # type: ignore[no-any-return]
        case "v":
            return ViewReported(cluster.view(replica, incarnation, **changes))
        case "a":
            slo = Slo(ttft_s=(0.1, 1.0, 5.0)[y % 3], tpot_s=0.1)
            return cluster.arrived(name, (1, 50, 400, 3000)[x % 4], slo=slo)  # type: ignore[no-any-return]
        case "f":
            return FirstTokenSent(request)
        case "p":
            return PrefillFinished(request)
        case "e":
            return RequestEnded(request, DONE)
        case "c":
            return ClientLeft(request)
        case "l":
            return ReplicaLost(replica, "silent")
        case "d":
            return ReplicaDrainRequested(replica)
        case "r":
            return RoleRequested(replica, ROLES[y % 6])
        case _:
            return TimePassed()


def run(cluster: Any, layout: str, script: list[tuple[str, int, int, float]]) -> list[list[ClusterAction]]:
    """Drive a core through the script, checking as it goes; returns all actions."""
    core = ClusterCore(ClusterCoreConfig(layout=layout, max_pending=4, macro=MACRO))  # type: ignore[arg-type]
    leased: dict[str, float] = {}
    now, known, trace = 0.0, list[str](), list[list[ClusterAction]]()
    for number, (kind, x, y, after) in enumerate(script):
        now += after * (x % 3) / 2
        event = event_of(cluster, kind, x, y, known, f"q{number}")
        if kind == "a":
            known.append(f"q{number}")
        replica_id = f"r{x % 12:02d}"
        before = core.placement.fleet.get(replica_id)
        actions = core.handle(event, now)
        if before is not core.placement.fleet.get(replica_id):
            leased.pop(replica_id, None)  # another process
        trace.append(actions)
        check_cluster_invariants(core)
        note_leases(actions, leased, now)
        check_turns(core, leased, now)
        if layout == "phased":
            check_nothing_crosses(core, actions)
    settle(core, now)
    return trace


def note_leases(actions: list[ClusterAction], leased: dict[str, float], now: float) -> None:
    """What the replicas were told about leases."""
    for action in actions:
        if isinstance(action, GrantLease):
            leased[action.replica_id] = now + action.duration_s
        elif isinstance(action, RevokeLease):
            leased.pop(action.replica_id, None)


def check_turns(core: ClusterCore, leased: dict[str, float], now: float) -> None:
    """In each macro instance the one whose turn it is was granted a lease, and no other member without prompts of its
    own has one left."""
    snapshot = core.snapshot(now)
    records = {record.replica_id: record for record in core.placement.fleet}
    for macro in snapshot.macro_instances:
        assert macro.pointer is not None
        for member in macro.members:
            has_lease = leased.get(member, -1.0) > now
            if member == macro.pointer:
                assert has_lease, f"{macro.name}: it is the turn of {member}, and nobody told it"
            elif not records[member].has_prefill_work:
                assert not has_lease, f"{macro.name}: {member} has a lease out of turn"


def check_nothing_crosses(core: ClusterCore, actions: list[ClusterAction]) -> None:
    """Zero KV bytes cross in the phased layout: no second leg is ever sent, whatever moves between macro instances."""
    for action in actions:
        assert not isinstance(action, DispatchPrefill)
        if isinstance(action, Dispatch) and action.plan.fallback is None:
            assert action.plan.layout is Layout.PHASED
            assert action.plan.prefill_replica_id is None
            assert action.plan.macro_instance == core.placement.fleet.macros.of(action.plan.replica_id).name  # type: ignore[union-attr]


def settle(core: ClusterCore, now: float) -> None:
    """Nothing more comes: the sizes are within their bounds once the cooldown is over."""
    for later_s in range(1, 12):
        core.handle(TimePassed(), now + later_s)
        check_cluster_invariants(core)
    sizes = [len(macro.members) for macro in core.snapshot(now + 12.0).macro_instances]
    assert all(min(MACRO.least, sum(sizes)) <= size <= MACRO.most for size in sizes), sizes


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(script=steps, layout=st.sampled_from(["phased", "auto"]))
def test_turns_and_bounds_hold_whatever_happens(
    cluster: Any, script: list[tuple[str, int, int, float]], layout: str
) -> None:
    start = [("j", number, 3, 0.0) for number in range(9)]
    assert run(cluster, layout, start + script) == run(cluster, layout, start + script)
