"""Fleets whose replicas differ in memory: a request goes where it fits, by whatever way is left, or is told at once."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import ClusterAction, Dispatch, RefuseRequest, ReplicaLost, TimePassed
from contracts.phase import Layout, Role
from scheduling.cluster_core import ClusterCore

SMALL = {"num_blocks": 40, "free_blocks": 40}
BROKEN = "layout.block_size differs"
PROMPT = 2000  # 125 blocks


def outcome(actions: list[ClusterAction]) -> tuple[Any, ...]:
    """(layout, replica, fallback) of a dispatch, (status, message) of a refusal."""
    (action,) = [found for found in actions if isinstance(found, Dispatch | RefuseRequest)]
    if isinstance(action, Dispatch):
        return action.plan.layout, action.plan.replica_id, action.plan.fallback
    return action.error.status, action.error.message


def fleet(cluster: Any, *, whole: Role, link_why_not: str | None) -> ClusterCore:
    """A small replica that serves whole requests, and a roomy pair of pools."""
    core: ClusterCore = cluster.core()
    core.handle(cluster.joined("w", role=whole, **SMALL), 0.0)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=(cluster.link("d", why_not=link_why_not),)), 0.0)
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    return core


@pytest.mark.parametrize("whole", [Role.ALTERNATING, Role.MIXED])
@pytest.mark.parametrize("layout", [None, Layout.DISAGGREGATED])
def test_pools_serve_whole_what_no_other_replica_could_hold(cluster: Any, whole: Role, layout: Layout | None) -> None:
    core = fleet(cluster, whole=whole, link_why_not=BROKEN)
    found = outcome(core.handle(cluster.arrived("r", PROMPT, layout=layout), 0.0))
    assert found == (Layout.COLOCATED, "d", f"no usable link: p->d: {BROKEN}")
    found = outcome(core.handle(cluster.arrived("short", 100, layout=layout), 0.0))
    assert found[1] == "w"


@pytest.mark.parametrize("layout", [None, Layout.DISAGGREGATED])
def test_the_loss_of_one_pool_makes_no_request_the_clients_mistake(cluster: Any, layout: Layout | None) -> None:
    core = fleet(cluster, whole=Role.ALTERNATING, link_why_not=None)
    core.handle(ReplicaLost("d", "died"), 0.0)
    found = outcome(core.handle(cluster.arrived("r", PROMPT, layout=layout), 0.0))
    assert found == (Layout.COLOCATED, "p", "no decode replica")


@pytest.mark.parametrize(("layout", "whole"), [(Layout.PHASED, Role.ALTERNATING), (Layout.COLOCATED, Role.MIXED)])
def test_a_layout_whose_replicas_are_too_small_falls_back(cluster: Any, layout: Layout, whole: Role) -> None:
    core = fleet(cluster, whole=whole, link_why_not=None)
    found = outcome(core.handle(cluster.arrived("r", PROMPT, layout=layout), 0.0))
    assert found[:2] == ((Layout.DISAGGREGATED, "d") if layout is Layout.PHASED else (Layout.COLOCATED, "d"))
    strict = cluster.arrived("s", PROMPT, layout=layout, on_unavailable="fail")
    if layout is Layout.PHASED:
        assert found[2] == "no alternating replica could ever hold the request"
        assert outcome(core.handle(strict, 0.0)) == (
            400,
            "prompt of 2000 tokens exceeds the largest KV cache of 640 tokens",
        )


def test_without_fallback_what_only_an_unlinked_pair_could_hold_is_told_at_once(cluster: Any) -> None:
    core = fleet(cluster, whole=Role.ALTERNATING, link_why_not=BROKEN)
    found = outcome(core.handle(cluster.arrived("r", PROMPT, on_unavailable="fail"), 0.0))
    assert found == (503, f"no usable link: p->d: {BROKEN}")


@pytest.mark.parametrize("layout", [None, Layout.DISAGGREGATED])
def test_a_link_to_a_replica_that_is_too_small_is_no_link(cluster: Any, layout: Layout | None) -> None:
    """Room on the linked one is not wanting for a time, but for ever: nobody may wait for it."""
    core = cluster.core()
    links = (cluster.link("d"), cluster.link("e", why_not=BROKEN))
    core.handle(cluster.joined("p", role=Role.PREFILL, links=links), 0.0)
    core.handle(cluster.joined("d", role=Role.DECODE, **SMALL), 0.0)
    core.handle(cluster.joined("e", role=Role.DECODE), 0.0)
    found = outcome(core.handle(cluster.arrived("r", PROMPT, layout=layout), 0.0))
    assert found == (Layout.COLOCATED, "e", f"no usable link: p->e: {BROKEN}")
    found = outcome(core.handle(cluster.arrived("s", PROMPT, layout=layout, on_unavailable="fail"), 0.0))
    assert found == (503, f"no usable link: p->e: {BROKEN}")


def test_a_waiting_request_is_told_when_the_only_replica_that_could_hold_it_leaves(cluster: Any) -> None:
    core = fleet(cluster, whole=Role.ALTERNATING, link_why_not=None)
    core.handle(ReplicaLost("p", "died"), 0.0)
    core.handle(cluster.joined("d", "2", role=Role.DECODE, free_blocks=0, running=64), 0.0)
    assert core.handle(cluster.arrived("r", PROMPT), 0.0) == []
    found = outcome(core.handle(ReplicaLost("d", "died"), 0.1) or core.handle(TimePassed(), 0.2))
    assert found == (503, "w: prompt of 2000 tokens over its KV cache of 640")
