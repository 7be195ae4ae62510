"""Requests that cannot be placed at once: bounds, order, late ones, refusal and expiry."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.cluster_io import ClusterAction, Dispatch, RefuseRequest, TimePassed, ViewReported
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import assert_nothing_placed, check_cluster_invariants


def dispatches(actions: list[ClusterAction]) -> list[tuple[str, str]]:
    return [(action.request_id, action.plan.replica_id) for action in actions if isinstance(action, Dispatch)]


def refusals(actions: list[ClusterAction]) -> list[tuple[str, int]]:
    return [(action.request_id, action.error.status) for action in actions if isinstance(action, RefuseRequest)]


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"prompt_tokens": 999}, None),
        ({"prompt_tokens": 1000}, "prompt"),
        ({"num_sequences": 8}, None),
        ({"num_sequences": 9}, "n"),
    ],
)
def test_what_no_replica_could_ever_take_is_refused_at_once(
    cluster: Any, changes: dict[str, int], param: str | None
) -> None:
    """Replicas with 1000 tokens of KV and room for 8: as idle as they are, waiting would not help."""
    core = cluster.core()
    for replica_id in ("a", "b"):
        joined = cluster.joined(replica_id, block_size=1)
        few = msgspec.structs.replace(joined.identity, max_waiting=8 if replica_id == "a" else 4)
        core.handle(msgspec.structs.replace(joined, identity=few), 0.0)
    actions = core.handle(cluster.arrived("r", **{"prompt_tokens": 10} | changes), 0.0)
    refused = [action.error for action in actions if isinstance(action, RefuseRequest)]
    assert [(error.status, error.param) for error in refused] == ([] if param is None else [(400, param)])
    assert core.pending_count == 0


def order(core: ClusterCore, now: float) -> tuple[list[str], list[str]]:
    punctual, late = core.placement.pending.in_order(now)
    return [record.request_id for record in punctual], [record.request_id for record in late]


def test_no_replica_is_503_at_once(cluster: Any) -> None:
    core = cluster.core()
    (refused,) = core.handle(cluster.arrived("r"), 0.0)
    assert (refused.error.status, refused.error.retry_after_s) == (503, 2.0)
    assert core.ready(0.0) == "no live replica"
    assert core.decisions()[0].refusal is not None
    assert_nothing_placed(core)


def test_prompt_larger_than_any_cache_is_400(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", num_blocks=10, free_blocks=10), 0.0)
    assert refusals(core.handle(cluster.arrived("r", 160), 0.0)) == [("r", 400)]
    assert dispatches(core.handle(cluster.arrived("s", 159), 0.0)) == [("s", "a")]


@pytest.mark.parametrize("settings", [{"max_pending": 2}, {"max_pending_s": 0.25}])
def test_pending_is_bounded_and_the_rest_is_told_when_to_come_back(cluster: Any, settings: dict[str, Any]) -> None:
    core = cluster.core(**settings)
    core.handle(cluster.joined("a", slack=0.01, backlog_s=8.0, waiting=1), 0.0)
    actions = [action for i in range(4) for action in core.handle(cluster.arrived(f"r{i}"), 0.0)]
    refused = [action for action in actions if isinstance(action, RefuseRequest)]
    assert [(action.request_id, action.error.status) for action in refused] == [("r2", 429), ("r3", 429)]
    assert refused[0].error.retry_after_s == pytest.approx(8.2)
    assert core.pending_count == 2
    check_cluster_invariants(core)


def test_pending_expires_with_504(cluster: Any) -> None:
    core = cluster.core(pending_deadline_s=3.0)
    core.handle(cluster.joined("a", slack=0.0, waiting=256), 0.0)
    core.handle(cluster.arrived("r"), 0.0)
    assert refusals(core.handle(TimePassed(), 2.9)) == []
    assert refusals(core.handle(TimePassed(), 3.0)) == [("r", 504)]
    assert_nothing_placed(core)


def test_first_token_that_never_comes_is_504_and_cancelled(cluster: Any) -> None:
    core = cluster.core("a", first_token_deadline_s=10.0)
    core.handle(cluster.arrived("r"), 0.0)
    kinds = [type(action).__name__ for action in core.handle(TimePassed(), 10.0)]
    assert kinds[:2] == ["CancelOn", "RefuseRequest"]
    assert_nothing_placed(core)


def test_pending_order_saves_the_most_deadlines(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.0), 0.0)
    # 1.0 s for all: long (0.8 s) and the two short ones (0.3 s) are not all possible, so the long one comes last
    for name, tokens in (("long", 800), ("short1", 300), ("short2", 300)):
        core.handle(cluster.arrived(name, tokens), 0.0)
    assert order(core, 0.0) == (["short1", "short2", "long"], [])
    # priority goes first
    core.handle(cluster.arrived("vip", 100, priority=1), 0.1)
    assert order(core, 0.1) == (["vip", "short1", "short2", "long"], [])
    # late ones go last: oldest first, but age raises priority
    core.handle(cluster.arrived("young", 100, slo=Slo(ttft_s=9.0, tpot_s=0.1)), 1.05)
    assert order(core, 1.05) == (["young"], ["vip", "long", "short1", "short2"])
    assert order(core, 2.05) == (["young"], ["long", "short1", "short2", "vip"])


def test_one_that_cannot_go_does_not_hold_up_the_next(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.0), 0.0)
    core.handle(cluster.arrived("large", 500), 0.0)
    core.handle(cluster.arrived("small", 100), 0.0)
    assert dispatches(core.handle(ViewReported(cluster.view("a", slack=0.2)), 0.1)) == [("small", "a")]


def test_late_prompts_get_their_share_of_a_busy_replica_and_no_more(cluster: Any) -> None:
    core = cluster.core(forced_share=0.5)
    core.handle(cluster.joined("a", slack=0.1), 0.0)
    assert dispatches(core.handle(cluster.arrived("huge1", 2000), 0.0))
    assert dispatches(core.handle(cluster.arrived("huge2", 2000), 0.0)) == []
    done = cluster.view("a", slack=0.1, acked_submit_index=1)
    assert dispatches(core.handle(ViewReported(done), 3.9)) == []
    assert dispatches(core.handle(ViewReported(done), 4.1)) == [("huge2", "a")]
    # within slack a third need not wait for its share
    assert dispatches(core.handle(cluster.arrived("huge3", 2000), 4.2)) == []
    ample = cluster.view("a", slack=5.0, acked_submit_index=2)
    assert dispatches(core.handle(ViewReported(ample), 6.3)) == [("huge3", "a")]


def test_late_prompts_leave_the_slack_to_punctual_ones(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.0), 0.0)
    core.handle(cluster.arrived("forced", 1500), 0.0)
    for name, tokens in (("late", 1500), ("punctual", 600)):
        core.handle(cluster.arrived(name, tokens), 0.0)
    assert core.pending_count == 2
    # 1.5 s of slack would do for the late one, but it is the punctual one that gets it
    spare = cluster.view("a", slack=1.5, acked_submit_index=1)
    assert dispatches(core.handle(ViewReported(spare), 0.1)) == [("punctual", "a")]
