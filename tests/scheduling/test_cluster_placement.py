"""Where the cluster core places requests: rolling activation, its traps, pending and refusal."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import (
    ClusterAction,
    Dispatch,
    FirstTokenSent,
    GrantLease,
    PrefillFinished,
    RequestEnded,
    RevokeLease,
    ViewReported,
)
from contracts.errors import InvalidTransition
from contracts.phase import Layout, Role
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_invariants import assert_nothing_placed

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")


def dispatches(actions: list[ClusterAction]) -> list[tuple[str, str]]:
    return [(action.request_id, action.plan.replica_id) for action in actions if isinstance(action, Dispatch)]


def test_one_request_from_arrival_to_end(cluster: Any) -> None:
    core = cluster.core("a")
    # 1. an idle fleet places it at once, the lease first
    actions = core.handle(cluster.arrived("r"), 1.0)
    assert [type(action) for action in actions] == [GrantLease, Dispatch]
    plan = actions[1].plan
    assert (plan.layout, plan.replica_id, actions[1].submit_index) == (Layout.PHASED, "a", 1)
    assert plan.prediction.ttft_s == pytest.approx(0.1)
    assert "prompt 0.100 s" in plan.reason
    # 2. it streams and ends
    core.handle(FirstTokenSent("r"), 1.1)
    core.handle(PrefillFinished("r"), 1.1)
    core.handle(RequestEnded("r", DONE), 2.0)
    # 3. the decision tells prediction and outcome, and nothing is left
    (decision,) = core.decisions()
    assert (decision.plan, decision.outcome) == (plan, DONE)
    assert_nothing_placed(core)


def test_rolling_sticks_until_the_slack_rule_fails_then_goes_round(cluster: Any) -> None:
    core = cluster.core("a", "b", "c")
    for name in "abc":
        core.handle(ViewReported(cluster.view(name, slack=0.25)), 0.1)
    placed = [dispatches(core.handle(cluster.arrived(f"r{i}"), 0.2))[0][1] for i in range(6)]
    assert placed == ["a", "a", "b", "b", "c", "c"]
    assert core.handle(cluster.arrived("late"), 0.2) == []
    assert core.pending_count == 1


def test_pointer_starts_where_it_stood_after_a_round(cluster: Any) -> None:
    core = cluster.core("a", "b")
    core.handle(ViewReported(cluster.view("a", slack=0.15)), 0.1)
    core.handle(ViewReported(cluster.view("b", slack=0.35)), 0.1)
    assert [dispatches(core.handle(cluster.arrived(f"r{i}"), 0.2))[0][1] for i in range(3)] == ["a", "b", "b"]


@pytest.mark.parametrize(("rule", "places"), [("min", False), ("mean", True), ("max", True), ("quantile(0.05)", False)])
def test_slack_rules_read_the_views_quantiles(cluster: Any, rule: str, places: bool) -> None:
    core = cluster.core(admission=rule)
    spread = tuple(i * 0.1 for i in range(11))
    core.handle(cluster.joined("a", running=2, slack_quantiles_s=spread, slack_mean_s=0.5), 0.0)
    assert bool(dispatches(core.handle(cluster.arrived("r", 90), 0.0))) is places


def test_waited_time_counts_against_the_ttft_target(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.1), 0.0)
    core.handle(cluster.arrived("r", 300), 0.0)
    # 0.5 s later there is slack enough and 0.5 s left: it goes, and the prediction counts the wait
    (_, sent) = [
        a for a in core.handle(ViewReported(cluster.view("a", slack=0.4)), 0.5) if not isinstance(a, RevokeLease)
    ]
    assert sent.plan.prediction.ttft_s == pytest.approx(0.805)  # half a decode step of 10 ms is left on average


def test_backlog_in_flight_counts_until_the_view_has_caught_up(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.5), 0.0)
    assert dispatches(core.handle(cluster.arrived("r1", 300), 0.0)) == [("r1", "a")]
    # an old view still says "nothing waits": the second prompt is not fooled by it
    core.handle(ViewReported(cluster.view("a", slack=0.5)), 0.01)
    assert dispatches(core.handle(cluster.arrived("r2", 300), 0.01)) == []
    # the next one counts it itself
    core.handle(ViewReported(cluster.view("a", slack=0.5, waiting=1, backlog_s=0.15, acked_submit_index=1)), 0.15)
    assert core.snapshot(0.15).replicas[0].backlog_s == pytest.approx(0.15 + 0.3)
    assert core.pending_count == 0


def test_window_ends_within_the_ttft_target_of_its_first_member(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=9.0), 0.0)
    assert dispatches(core.handle(cluster.arrived("first", 500), 0.0))
    # first token of `first` is out, its clock has not started: only the window protects it
    core.handle(FirstTokenSent("first"), 0.6)
    core.handle(ViewReported(cluster.view("a", slack=9.0, waiting=1, backlog_s=0.01, acked_submit_index=1)), 0.6)
    assert dispatches(core.handle(cluster.arrived("second", 500), 0.6)) == []
    # back in decode, the window is closed and a new one may begin
    assert dispatches(core.handle(ViewReported(cluster.view("a", slack=9.0, acked_submit_index=1)), 0.7)) == [
        ("second", "a")
    ]


def test_prompt_longer_than_the_ttft_target_neither_starves_nor_blocks(cluster: Any) -> None:
    core = cluster.core()
    for name, slack in (("a", 0.5), ("b", 0.4)):
        core.handle(cluster.joined(name, slack=slack), 0.0)
    actions = core.handle(cluster.arrived("huge", 5000), 0.0)
    assert dispatches(actions) == [("huge", "a")]
    (sent,) = [action for action in actions if isinstance(action, Dispatch)]
    assert "best effort" in sent.plan.reason
    assert "prompt alone 5.000 s" in sent.plan.reason
    assert dispatches(core.handle(cluster.arrived("small"), 0.0)) == [("small", "b")]


def test_request_past_its_ttft_target_is_placed_without_slack(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=-1.0), 0.0)
    assert dispatches(core.handle(cluster.arrived("r"), 0.0)) == []
    core.handle(ViewReported(cluster.view("a", slack=-1.0)), 0.89)
    assert core.pending_count == 1
    assert dispatches(core.handle(ViewReported(cluster.view("a", slack=-1.0)), 1.01)) == [("r", "a")]


def test_low_load_prefers_an_idle_replica_to_interrupting_streams(cluster: Any) -> None:
    core = cluster.core("a", "b")
    core.handle(ViewReported(cluster.view("a", slack=5.0)), 0.1)
    assert dispatches(core.handle(cluster.arrived("r"), 0.2)) == [("r", "b")]


def test_a_burst_on_an_idle_fleet_is_shared(cluster: Any) -> None:
    core = cluster.core("a", "b")
    placed = [dispatches(core.handle(cluster.arrived(f"r{i}"), 0.2))[0][1] for i in range(4)]
    assert sorted(placed) == ["a", "a", "b", "b"]


def test_slow_idle_replica_is_not_preferred(cluster: Any) -> None:
    core = cluster.core("a")
    core.handle(ViewReported(cluster.view("a", slack=5.0)), 0.1)
    slow = type(cluster.cost)(a0=0.0, a1=0.005, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    core.handle(cluster.joined("b", cost=slow), 0.1)
    assert dispatches(core.handle(cluster.arrived("r"), 0.2)) == [("r", "a")]


def test_a_full_replica_is_passed_over(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=9.0, free_blocks=3), 0.0)
    core.handle(cluster.joined("b", slack=9.0, running=64), 0.0)
    core.handle(cluster.joined("c", slack=9.0), 0.0)
    assert dispatches(core.handle(cluster.arrived("r"), 0.0)) == [("r", "c")]


def test_draining_and_stale_replicas_get_nothing(cluster: Any) -> None:
    core = cluster.core("a", "b", "c")
    core.handle(ViewReported(cluster.view("a", draining=True)), 3.0)
    core.handle(ViewReported(cluster.view("c")), 3.0)
    assert dispatches(core.handle(cluster.arrived("r"), 3.0)) == [("r", "c")]


def test_the_only_replica_is_used_while_stale_but_not_when_silent_or_stuck(cluster: Any) -> None:
    core = cluster.core("a")
    assert dispatches(core.handle(cluster.arrived("r1"), 4.0)) == [("r1", "a")]
    assert core.ready(4.0) is None
    assert dispatches(core.handle(cluster.arrived("r2"), 5.5)) == []
    assert core.ready(5.5) == "a: last view 5.5 s old"
    assert dispatches(core.handle(ViewReported(cluster.view("a")), 5.6)) == [("r2", "a")]
    core.handle(ViewReported(cluster.view("a", step_age_s=40.0)), 6.0)
    assert core.ready(6.0) == "a: one step has run for 40.0 s"


def test_lease_is_extended_with_backlog_and_withdrawn_when_the_pointer_moves_on(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.15), 0.0)
    core.handle(cluster.joined("b", slack=0.15), 0.0)
    assert core.handle(cluster.arrived("r1"), 0.1)[0] == GrantLease("a", 2.0)
    assert core.handle(cluster.arrived("r2"), 0.2)[0] == GrantLease("b", 2.0)
    # a still has its prompt to do: its lease is kept while that lasts
    busy = cluster.view("a", slack=0.1, waiting=1, backlog_s=0.05, acked_submit_index=1)
    assert core.handle(ViewReported(busy), 1.5) == [GrantLease("a", 2.0), GrantLease("b", 2.0)]
    assert core.handle(ViewReported(cluster.view("a", slack=0.1, acked_submit_index=1)), 1.6) == [RevokeLease("a")]
    assert [replica.open_for_prefill for replica in core.snapshot(1.6).replicas] == [False, True]


def test_colocated_takes_the_cheapest_that_meets_both_targets_else_the_fastest(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", role=Role.MIXED, slack=0.5, running=4, slack_mean_s=0.5), 0.0)
    core.handle(cluster.joined("b", role=Role.MIXED, slack=0.5, running=2), 0.0)
    actions = core.handle(cluster.arrived("r1"), 0.0)
    assert [type(action) for action in actions] == [Dispatch]
    assert actions[0].plan.layout is Layout.COLOCATED
    assert actions[0].plan.replica_id == "b"
    # neither meets 0.05 s: the shorter backlog wins, and nothing waits without need
    sent = core.handle(cluster.arrived("r2", 40, slo=Slo(ttft_s=0.05, tpot_s=0.1)), 0.0)
    assert dispatches(sent) == [("r2", "a")]


def test_mixed_replica_helps_out_when_no_alternating_one_passes(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.01), 0.0)
    core.handle(cluster.joined("m", role=Role.MIXED, slack=0.01), 0.0)
    sent = core.handle(cluster.arrived("r"), 0.0)
    assert dispatches(sent) == [("r", "m")]


def test_unreachable_tpot_target_does_not_close_the_fleet(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=5.0), 0.0)
    assert dispatches(core.handle(cluster.arrived("r", slo=Slo(ttft_s=1.0, tpot_s=0.001)), 0.0)) == [("r", "a")]


def test_sequences_of_one_request_count_each(cluster: Any) -> None:
    core = cluster.core("a")
    core.handle(cluster.arrived("r", num_sequences=8), 0.0)
    core.handle(cluster.arrived("s", num_sequences=60), 0.0)
    assert core.pending_count == 1


def test_decisions_are_bounded_and_newest_first(cluster: Any) -> None:
    core = cluster.core("a", decisions_kept=3)
    for i in range(5):
        core.handle(cluster.arrived(f"r{i}", 10), float(i) / 100)
    assert [decision.request_id for decision in core.decisions()] == ["r4", "r3", "r2"]


def test_an_id_in_use_is_our_own_bug(cluster: Any) -> None:
    core: ClusterCore = cluster.core("a")
    core.handle(cluster.arrived("r"), 0.0)
    with pytest.raises(InvalidTransition, match="r arrived while it is dispatched"):
        core.handle(cluster.arrived("r"), 0.1)
