"""Hand-offs that cannot be had: what the cluster core falls back to, what it waits for and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import (
    ClusterAction,
    Dispatch,
    RefuseRequest,
    RequestEnded,
    ViewReported,
)
from contracts.phase import Layout, Role
from contracts.plan import Outcome, Plan
from scheduling.cluster_invariants import assert_nothing_placed

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")


def plan(actions: list[ClusterAction]) -> Plan:
    (found,) = [action.plan for action in actions if isinstance(action, Dispatch)]
    return found


def pair(actions: list[ClusterAction]) -> tuple[str | None, str]:
    return plan(actions).prefill_replica_id, plan(actions).replica_id


def refusal(actions: list[ClusterAction]) -> tuple[int, str, float | None]:
    (found,) = [action.error for action in actions if isinstance(action, RefuseRequest)]
    return found.status, found.message, found.retry_after_s


@pytest.mark.parametrize("missing", ["prefill", "decode", "link"])
def test_unavailable_hand_off_falls_back_or_fails_by_policy(cluster: Any, missing: str) -> None:
    core = cluster.core(on_unavailable="fail")
    if missing != "prefill":
        links = () if missing == "link" else (cluster.link("d"),)
        core.handle(cluster.joined("p", role=Role.PREFILL, links=links), 0.0)
    if missing != "decode":
        core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    told = {"prefill": "no prefill replica", "decode": "no decode replica", "link": "p->d: not connected yet"}[missing]
    status, message, retry_after_s = refusal(core.handle(cluster.arrived("r1"), 0.0))
    assert (status, retry_after_s) == (503, 2.0)
    assert told in message
    assert told in (core.ready(0.0) or "")
    found = plan(core.handle(cluster.arrived("r2", on_unavailable="colocate"), 0.0))
    assert (found.layout, found.replica_id) == (Layout.COLOCATED, "p" if missing == "decode" else "d")
    assert told in (found.fallback or "")
    core.handle(RequestEnded("r2", DONE), 1.0)
    assert_nothing_placed(core)


def test_layouts_without_replicas_fall_back_or_fail_by_policy(cluster: Any) -> None:
    core = cluster.core("a")
    for layout in (Layout.DISAGGREGATED, Layout.COLOCATED):
        asked = cluster.arrived(f"x-{layout}", 10, layout=layout, on_unavailable="fail")
        assert refusal(core.handle(asked, 0.0))[0] == 503
        found = plan(core.handle(cluster.arrived(f"y-{layout}", 10, layout=layout), 0.0))
        assert (found.layout, found.replica_id) == (Layout.PHASED, "a")
        assert found.fallback is not None
    core = cluster.pools(cluster.core(layout="phased", on_unavailable="fail"), "p", "d")
    assert core.ready(0.0) == "no alternating replica takes requests"
    assert refusal(core.handle(cluster.arrived("r"), 0.0))[0] == 503
    found = plan(core.handle(cluster.arrived("s", on_unavailable="colocate"), 0.0))
    assert (found.layout, found.fallback) == (Layout.DISAGGREGATED, "no alternating replica takes requests")


def test_colocated_can_be_had_on_a_pool_replica(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    found = plan(core.handle(cluster.arrived("r", layout=Layout.COLOCATED, on_unavailable="fail"), 0.0))
    assert (found.layout, found.replica_id, found.fallback) == (Layout.COLOCATED, "d", None)


def test_pools_that_could_hand_over_but_cannot_are_never_silent(cluster: Any) -> None:
    core = cluster.core("a")
    for name, role in (("p", Role.PREFILL), ("d", Role.DECODE)):
        core.handle(cluster.joined(name, role=role), 0.0)
    assert (
        plan(core.handle(cluster.arrived("r"), 0.0)).fallback == "no hand-off: no usable link: p->d: not connected yet"
    )


def test_full_pools_are_waited_for(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("d", role=Role.DECODE, slack=9.0, free_blocks=3), 0.0)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=(cluster.link("d"),)), 0.0)
    assert core.handle(cluster.arrived("r"), 0.0) == []
    assert core.pending_count == 1
    assert pair(core.handle(ViewReported(cluster.view("d", role=Role.DECODE)), 0.1)) == ("p", "d")


def test_a_silent_prefill_replica_is_worked_around_or_waited_for(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    fresh = ViewReported(cluster.view("d", role=Role.DECODE))
    core.handle(fresh, 6.0)
    found = plan(core.handle(cluster.arrived("r1"), 6.0))
    assert (found.replica_id, found.fallback) == ("d", "p: last view 6.0 s old")
    assert core.handle(cluster.arrived("r2", on_unavailable="fail"), 6.0) == []
    links = (cluster.link("d"),)
    assert pair(core.handle(ViewReported(cluster.view("p", role=Role.PREFILL, links=links)), 6.1)) == ("p", "d")


@pytest.mark.parametrize(("tokens", "ends"), [(99, "pair"), (100, "whole"), (200, "refused")])
def test_what_fits_neither_is_refused_what_fits_one_is_not(cluster: Any, tokens: int, ends: str) -> None:
    for policy in ("colocate", "fail"):
        core = cluster.core(on_unavailable=policy)
        core.handle(cluster.joined("d", role=Role.DECODE, num_blocks=200, free_blocks=200, block_size=1), 0.0)
        small = {"num_blocks": 100, "free_blocks": 100, "block_size": 1, "links": (cluster.link("d"),)}
        core.handle(cluster.joined("p", role=Role.PREFILL, **small), 0.0)
        actions = core.handle(cluster.arrived("r", tokens, max_tokens=1), 0.0)
        if ends == "refused" or (ends == "whole" and policy == "fail"):
            assert refusal(actions)[0] == 400
        else:
            assert pair(actions) == (("p", "d") if ends == "pair" else (None, "d"))
