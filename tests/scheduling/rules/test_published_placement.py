"""EcoServe's rules of placement as published: Algorithm 1, the released code's transition table, fixed intervals."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import ClusterAction, Dispatch, PrefillFinished, ViewReported
from contracts.request import Slo


def dispatches(actions: list[ClusterAction]) -> list[str]:
    return [action.plan.replica_id for action in actions if isinstance(action, Dispatch)]


def place(core: Any, cluster: Any, name: str, tokens: int, at: float) -> str | None:
    """Where a prompt of so many milliseconds goes. The TTFT target is 1 s."""
    found = dispatches(core.handle(cluster.arrived(name, tokens), at))
    return found[0] if found else None


def fleet(cluster: Any, rule: str, slacks: dict[str, float | None], **changes: Any) -> Any:
    """A core with these replicas, each with one stream of that slack (None: idle)."""
    core = cluster.core(admission=rule)
    for name, slack in slacks.items():
        core.handle(cluster.joined(name, slack=slack, **changes), 0.0)
    return core


# The released code, (slack of current, prompts it has in this turn, prompt, slack of next) -> taken by
ARTIFACT = [
    # 1. min(S_TTFT if the window has members, max slack) > t_total: stay
    ("room within slack", 0.5, [], 400, 9.0, "a"),
    ("equal is not enough (strict)", 0.5, [], 500, 9.0, "b"),
    ("t_total counts the whole turn", 0.5, [200], 250, 9.0, "a"),
    ("and all of it", 0.5, [200], 350, 9.0, "b"),
    ("with members S_TTFT bounds it", 9.0, [600], 500, 9.0, "b"),
    ("an empty window is not bounded by S_TTFT", 9.0, [], 1500, 9.0, "a"),
    # 2. fails, t_total <= S_TTFT: stay while the next one's max slack is below S_TTFT*(n-1)/n = 0.5 s
    ("next not ready", 0.1, [], 400, 0.4, "a"),
    ("next just ready", 0.1, [], 400, 0.5, "b"),
    ("next has no requests", 0.1, [], 400, None, "b"),
    # 3. t_total > S_TTFT: switch, ready or not
    ("too long for the target", 0.1, [], 1200, 0.1, "b"),
]


@pytest.mark.parametrize(("why", "current", "before", "prompt", "following", "taken"), ARTIFACT)
def test_the_artifacts_transition_table(
    cluster: Any, why: str, current: float, before: list[int], prompt: int, following: float | None, taken: str
) -> None:
    core = fleet(cluster, "ecoserve_artifact", {"a": current, "b": following})
    for number, tokens in enumerate(before):
        assert place(core, cluster, f"before{number}", tokens, 0.1) == "a"
    assert place(core, cluster, "r", prompt, 0.1) == taken, why


def test_artifact_switches_when_memory_is_short(cluster: Any) -> None:
    core = fleet(cluster, "ecoserve_artifact", {"a": 9.0, "b": 0.1}, free_blocks=20)
    assert place(core, cluster, "r", 300, 0.1) == "a"  # 19 blocks
    assert place(core, cluster, "s", 32, 0.1) == "b"  # 3 more: one extra on an exact multiple


def test_artifact_slack_is_frozen_when_the_turn_begins(cluster: Any) -> None:
    """Slack that is gained or lost within the turn is not looked at, nor are streams that begin in it."""
    core = fleet(cluster, "ecoserve_artifact", {"a": 0.5, "b": 9.0})
    assert place(core, cluster, "r", 100, 0.1) == "a"
    core.handle(PrefillFinished("r"), 0.2)
    core.handle(ViewReported(cluster.view("a", slack=0.01, acked_submit_index=1)), 0.3)
    assert place(core, cluster, "s", 300, 0.3) == "a"  # 0.4 s of the frozen 0.5 s
    core.handle(ViewReported(cluster.view("a", slack=50.0, acked_submit_index=2)), 0.6)
    assert place(core, cluster, "t", 200, 0.6) == "b"


def test_artifact_never_lets_anything_wait_and_takes_the_next_unchecked(cluster: Any) -> None:
    core = fleet(cluster, "ecoserve_artifact", {"a": 0.1, "b": -5.0, "c": 9.0})
    placed = [place(core, cluster, f"r{i}", 1500, 0.1) for i in range(6)]
    assert placed == ["b", "c", "a", "b", "c", "a"]
    assert core.pending_count == 0


def test_paper_goes_by_the_mean_of_the_window_whole(cluster: Any) -> None:
    core = cluster.core(admission="ecoserve_paper")
    spread = (0.0, *[0.5] * 9, 1.0)
    core.handle(cluster.joined("a", running=2, slack_quantiles_s=spread, slack_mean_s=0.5), 0.0)
    assert place(core, cluster, "r", 300, 0.1) == "a"  # a stream without slack pays
    core.handle(PrefillFinished("r"), 0.4)
    core.handle(ViewReported(cluster.view("a", running=3, waiting=1, slack_quantiles_s=spread, slack_mean_s=0.5)), 0.4)
    assert place(core, cluster, "s", 300, 0.4) is None  # 0.6 s of window, done or not
    back_in_decode = cluster.view("a", slack=0.5, acked_submit_index=1)
    assert dispatches(core.handle(ViewReported(back_in_decode), 0.5)) == ["a"]


def test_paper_compares_the_whole_target_however_long_it_waited(cluster: Any) -> None:
    """A trap that the reproduction keeps; `min` counts the time waited."""
    taken = {}
    for rule in ("ecoserve_paper", "min"):
        core = fleet(cluster, rule, {"a": 0.1})
        assert place(core, cluster, "r", 300, 0.0) is None
        view = cluster.view("a", slack=0.7, waiting=1, backlog_s=0.3)
        taken[rule] = dispatches(core.handle(ViewReported(view), 0.5))  # 0.5 + 0.3 + 0.3 s is too late
    assert taken == {"ecoserve_paper": ["a"], "min": []}


def test_paper_sticks_to_the_current_replica_at_low_load(cluster: Any) -> None:
    """The other trap that it keeps: ours goes where no stream is interrupted."""
    taken = {}
    for rule in ("ecoserve_paper", "min"):
        core = fleet(cluster, rule, {"a": 0.9, "b": None})
        taken[rule] = place(core, cluster, "r", 200, 0.1)
    assert taken == {"ecoserve_paper": "a", "min": "b"}


def test_a_rule_that_lets_tight_streams_pay_prefers_a_replica_where_none_does(cluster: Any) -> None:
    spread = (0.0, *[0.9] * 10)
    for rule in ("quantile(0.5)", "mean", "max"):
        core = cluster.core(admission=rule)
        core.handle(cluster.joined("a", running=4, slack_quantiles_s=spread, slack_mean_s=0.8), 0.0)
        assert place(core, cluster, "q", 100, 0.0) == "a"
        core.handle(cluster.joined("b", slack=0.9), 0.1)
        assert place(core, cluster, "r", 200, 0.1) == "b", rule


def test_fixed_interval_passes_the_turn_on_by_the_clock_alone(cluster: Any) -> None:
    core = fleet(cluster, "fixed_interval(0.5)", {"a": -9.0, "b": 9.0, "c": None})
    at = [(0.0, "a"), (0.3, "a"), (0.49, "a"), (0.5, "b"), (0.9, "b"), (1.0, "c"), (1.6, "a")]
    assert [(t, place(core, cluster, f"r{t}", 700, t)) for t, _ in at] == at


def test_a_stream_that_waits_for_its_first_step_is_not_hidden_by_the_window(cluster: Any) -> None:
    """The window has ended and its member has no clock yet: its TTFT target still bounds what comes before it."""
    core = cluster.core(admission="min")
    core.handle(cluster.joined("a"), 0.0)
    assert place(core, cluster, "r", 600, 0.0) == "a"
    core.handle(PrefillFinished("r"), 0.6)
    core.handle(ViewReported(cluster.view("a", running=1, switch_left_s=0.4, acked_submit_index=1)), 0.6)
    slo = Slo(ttft_s=5.0, tpot_s=0.1)
    assert dispatches(core.handle(cluster.arrived("long", 500, slo=slo), 0.6)) == []
    assert dispatches(core.handle(cluster.arrived("short", 300, slo=slo), 0.6)) == ["a"]
