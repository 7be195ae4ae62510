"""When pools are ready: after the giver's first word about a link, so that no client pays for the warm-up (XFER-7)."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import ViewReported
from contracts.handoff import LinkView
from contracts.phase import Role


def pools(cluster: Any, *links: LinkView, **settings: Any) -> Any:
    core = cluster.core(**settings)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=links), 0.0)
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    return core


def test_pools_are_ready_once_a_link_is_up(cluster: Any) -> None:
    core = pools(cluster)
    assert core.ready(0.0) == "p is still connecting to d"
    up = LinkView(peer_id="d", peer_incarnation="1", transport="tcp")
    core.handle(ViewReported(cluster.view("p", role=Role.PREFILL, links=(up,))), 0.1)
    assert core.ready(0.1) is None


@pytest.mark.parametrize(("on_unavailable", "ready"), [("colocate", True), ("fail", False)])
def test_a_link_that_cannot_be_had_is_a_matter_of_policy(cluster: Any, on_unavailable: str, ready: bool) -> None:
    down = LinkView(peer_id="d", peer_incarnation="1", why_not="block_size 16 here, 24 there")
    why = pools(cluster, down, on_unavailable=on_unavailable).ready(0.0)
    assert (why is None) is ready
    assert ready or "block_size 16 here, 24 there" in why


def test_who_serves_whole_requests_waits_for_no_link(cluster: Any) -> None:
    core = pools(cluster)
    core.handle(cluster.joined("m", role=Role.MIXED), 0.0)
    assert core.ready(0.0) is None


def test_a_pool_alone_is_ready_to_serve_whole_requests(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    assert core.ready(0.0) is None
