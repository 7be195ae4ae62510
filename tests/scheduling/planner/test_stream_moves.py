"""Streams on a replica that is to prefill: handed on where that is cheaper than their decode steps, never lost."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import (
    CancelOn,
    ClusterAction,
    Dispatch,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RefuseRequest,
    RequestRefused,
    TimePassed,
    ViewReported,
)
from contracts.errors import HandoffFailed, Overloaded
from contracts.phase import Layout, Role
from contracts.request import Slo
from contracts.views import StepCost
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import check_cluster_invariants
from scheduling.planner_config import PlannerConfig

SLO = Slo(ttft_s=2.0, tpot_s=0.05)
COST = StepCost(a0=0.025, a1=0.0003, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
"""A prompt of 300 tokens takes 0.115 s, a decode step 25 ms: as long as a stream is there, half of each TPOT target."""
ROOM = {"num_blocks": 4000, "free_blocks": 4000}
ON = PlannerConfig(enabled=True, every_s=1e6)
"""Evaluates before anything comes, and then never: the roles stay as they are here."""
FULL = Overloaded("no room", retry_after_s=1.0).info()


def show(core: ClusterCore, cluster: Any, name: str, role: Role, now: float, **view: Any) -> list[ClusterAction]:
    links = (cluster.link("d", 1e9),) if name != "d" else ()
    values = {"links": links, "cost": COST, "decode_step_s": 0.025, "acked_submit_index": 99, **ROOM, **view}
    shown = cluster.view(name, role=role, **values)
    return core.handle(ViewReported(shown), now)


def streaming(cluster: Any, streams: int = 2, prompt: int = 300, asked: Any = None, **settings: Any) -> ClusterCore:
    """Streams on a mixed replica `p`, at 3 s; then it is to prefill for a decode replica `d`."""
    core: ClusterCore = cluster.core(**({"planner": ON} | settings))
    core.handle(TimePassed(), 0.0)
    core.handle(cluster.joined("p", role=Role.MIXED, cost=COST, **ROOM), 0.0)
    for index in range(streams):
        request = cluster.arrived(f"r{index}", prompt, slo=SLO, max_tokens=4000, **(asked or {}))
        assert [a for a in core.handle(request, 1.0) if isinstance(a, Dispatch)]
        show(core, cluster, "p", Role.MIXED, 1.0)
        core.handle(FirstTokenSent(f"r{index}"), 2.0)
        core.handle(PrefillFinished(f"r{index}"), 2.0)
    core.handle(cluster.joined("d", role=Role.DECODE, cost=COST), 3.0)
    show(core, cluster, "p", Role.PREFILL, 3.0, running=streams, guarded=streams)
    return core


def moved(actions: list[ClusterAction]) -> list[tuple[str, str, str | None]]:
    assert {a.request_id for a in actions if isinstance(a, CancelOn)} == {
        a.request_id for a in actions if isinstance(a, Dispatch)
    }, "who goes on elsewhere ends where it was, and nobody else does"
    return [(a.request_id, a.plan.replica_id, a.plan.prefill_replica_id) for a in actions if isinstance(a, Dispatch)]


def dispatched(actions: list[ClusterAction]) -> list[str]:
    return [action.plan.replica_id for action in actions if isinstance(action, Dispatch)]


def test_they_go_on_at_a_decode_replica(cluster: Any) -> None:
    core = streaming(cluster)
    assert moved(core.handle(TimePassed(), 3.0)) == [("r0", "d", "p"), ("r1", "d", "p")]
    assert core.snapshot(3.0).counters.moved == 2
    (told,) = [decision for decision in core.fleet_decisions() if decision.kind == "streams_moved"]
    assert (told.replica_id, told.numbers["streams"]) == ("p", 2)
    assert moved(core.handle(TimePassed(), 3.1)) == [], "each of them once"


def test_what_is_computed_again_counts_what_was_said_already(cluster: Any) -> None:
    core = streaming(cluster, streams=1)
    (plan,) = [a.plan for a in core.handle(TimePassed(), 3.0) if isinstance(a, Dispatch)]
    said = 1 + 1.0 / SLO.tpot_s
    assert plan.prediction.ttft_s == pytest.approx(COST.a0 + COST.a1 * (300 + said) + 0.0, rel=0.02)


def test_long_prompts_stay_until_they_end(cluster: Any) -> None:
    """64 output tokens are expected: 1.6 s of decode steps for one, against 3 s of prefill."""
    core = streaming(cluster, streams=1, prompt=10_000)
    assert moved(core.handle(TimePassed(), 3.0)) == []


def test_many_streams_share_their_steps_but_not_their_prefills(cluster: Any) -> None:
    few, many = streaming(cluster, streams=2, prompt=600), streaming(cluster, streams=16, prompt=600)
    assert moved(few.handle(TimePassed(), 3.0)) != []
    assert moved(many.handle(TimePassed(), 3.0)) == []


def test_who_could_not_make_up_for_the_pause_stays(cluster: Any) -> None:
    """A decode replica that is as slow as the target allows gives nothing back."""
    core = streaming(cluster)
    show(core, cluster, "d", Role.DECODE, 3.0, running=30, slack_quantiles_s=(1.0,) * 11, decode_step_s=0.049)
    assert moved(core.handle(TimePassed(), 3.0)) == []


@pytest.mark.parametrize(
    ("asked", "settings"),
    [
        ({"num_sequences": 2}, {}),
        ({"layout": Layout.COLOCATED}, {}),
        ({}, {"planner": PlannerConfig()}),
        ({}, {"on_handoff_failure": "fail"}),
        ({}, {"max_dispatches": 1}),
        ({"on_unavailable": "fail"}, {}),
    ],
)
def test_who_stays_in_any_case(cluster: Any, asked: dict[str, Any], settings: dict[str, Any]) -> None:
    core = streaming(cluster, streams=1, asked=asked, **settings)
    assert moved(core.handle(TimePassed(), 3.0)) == []


def test_a_hand_off_that_fails_is_not_the_end(cluster: Any) -> None:
    core = streaming(cluster, streams=1)
    core.handle(TimePassed(), 3.0)
    core.handle(KVReserved("r0", 0), 3.0)
    actions = core.handle(RequestRefused("r0", "d", HandoffFailed("the link broke").info(), 21), 3.5)
    assert [a.request_id for a in actions if isinstance(a, Dispatch)] == ["r0"]


@pytest.mark.parametrize("refused_before", [False, True])
def test_a_replica_that_turns_it_away_is_not_the_end(cluster: Any, refused_before: bool) -> None:
    """Where it was it would have gone on: a move takes no try from it, and what was before it does not count."""
    core: ClusterCore = cluster.core(planner=ON, max_dispatches=3)
    core.handle(TimePassed(), 0.0)
    for name in ("p", "q") if refused_before else ("p",):
        core.handle(cluster.joined(name, role=Role.MIXED, cost=COST, **ROOM), 0.0)
    (first,) = dispatched(core.handle(cluster.arrived("r0", 300, slo=SLO, max_tokens=4000), 1.0))
    if refused_before:
        (first,) = dispatched(core.handle(RequestRefused("r0", first, FULL), 1.5))
    core.handle(FirstTokenSent("r0"), 2.0)
    core.handle(PrefillFinished("r0"), 2.0)
    core.handle(cluster.joined("d", role=Role.DECODE, cost=COST), 3.0)
    show(core, cluster, first, Role.PREFILL, 3.0, running=1, guarded=1)
    assert dispatched(core.handle(TimePassed(), 3.0)) == ["d"]
    for at in range(3 - 1 - refused_before):
        core.handle(RequestRefused("r0", core.placement.requests["r0"].replica_id or "", FULL, 21), 3.5 + at)
        show(core, cluster, "d", Role.DECODE, 3.6 + at)
        show(core, cluster, first, Role.PREFILL, 3.6 + at)
        actions = core.handle(TimePassed(), 3.6 + at)
        assert not [a for a in actions if isinstance(a, RefuseRequest)]
        assert core.placement.requests["r0"].replica_id is not None, "it is placed again"
    check_cluster_invariants(core)
