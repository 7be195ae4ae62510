"""Long prompts beside streams: windows end at the longest gap, and what no window holds is prefilled in pieces."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import Dispatch
from contracts.request import Slo
from contracts.views import StepCost
from scheduling.plan_inputs import Ask, Load
from scheduling.plan_predict import chunked_ttft_s, cut_ttft_s

LONG = Slo(ttft_s=4.0, tpot_s=0.1)


def sent(actions: list[Any]) -> list[Dispatch]:
    return [action for action in actions if isinstance(action, Dispatch)]


def test_windows_are_not_planned_beyond_the_longest_gap(cluster: Any) -> None:
    core = cluster.core(max_gap_s=0.5)
    core.handle(cluster.joined("a", slack=3.0), 0.0)
    core.handle(cluster.joined("b", slack=3.0), 0.0)
    placed = [sent(core.handle(cluster.arrived(name, 300, slo=LONG), 0.0)) for name in ("one", "two", "three")]
    assert [[(action.request_id, action.plan.replica_id) for action in actions] for actions in placed] == [
        [("one", "a")],
        [("two", "b")],
        [],
    ]


def test_a_prompt_that_no_window_holds_is_placed_in_pieces_at_once(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.1), 0.0)
    core.handle(cluster.joined("b", slack=0.3), 0.0)
    (action,) = sent(core.handle(cluster.arrived("long", 2000, slo=LONG), 0.0))
    assert action.plan.replica_id == "b"  # more slack: done first
    assert "best effort" not in action.plan.reason
    assert 2.0 < action.plan.prediction.ttft_s <= LONG.ttft_s
    assert action.plan.prediction.harm_s == 0.0


def test_without_chunking_a_prompt_longer_than_the_gap_has_a_window_of_its_own(cluster: Any) -> None:
    core = cluster.core(window_chunking=False)
    core.handle(cluster.joined("a", slack=0.1), 0.0)
    core.handle(cluster.joined("b", slack=3.0), 0.0)
    (action,) = sent(core.handle(cluster.arrived("long", 2000, slo=LONG), 0.0))
    assert action.plan.replica_id == "b"
    assert not sent(core.handle(cluster.arrived("other", 2000, slo=LONG), 0.0))


def test_a_prompt_that_has_waited_long_enough_is_placed_in_pieces(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.2), 0.0)
    assert not sent(core.handle(cluster.arrived("r", 400, slo=LONG), 0.0))
    (action,) = sent(core.handle(cluster.joined("b", slack=0.1), 1.1))
    assert action.request_id == "r"
    assert "best effort" not in action.plan.reason


@pytest.mark.parametrize(("step_s", "expected_s"), [(0.05, 0.05 + 0.2 + 0.8 / 0.5), (0.1, float("inf"))])
def test_cut_windows_advance_as_fast_as_decode_gains_on_its_target(step_s: float, expected_s: float) -> None:
    cost = StepCost(a0=0.0, a1=0.0, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    ask = Ask(prompt_tokens=10, num_sequences=1, reserve_tokens=1, slo=LONG, waited_s=0.0)
    load: Any = dict.fromkeys(Load.__struct_fields__) | {
        "cost": cost,
        "backlog_s": 0.4,
        "slack_s": 0.2,
        "waiting": 0,
        "decode_step_s": step_s,
    }
    assert cut_ttft_s(ask, Load(**load), 0.6, max_gap_s=1.0) == pytest.approx(expected_s)


@pytest.mark.parametrize(("waited_s", "before_s"), [(1.0, 0.4), (5.0, 0.9)])
def test_late_prompts_of_a_mixed_replica_stand_in_the_way_of_late_ones_only(waited_s: float, before_s: float) -> None:
    """Steps of 40 ms and 1 ms a token: of a TPOT target of 0.1 s prefill has 0.6, with a margin of 20 ms half."""
    cost = StepCost(a0=0.04, a1=0.001, b0=0.0, b1=0.0, b2=0.0, b3=0.0, margin_s=0.02)
    ask = Ask(prompt_tokens=10, num_sequences=1, reserve_tokens=1, slo=LONG, waited_s=waited_s)
    load: Any = dict.fromkeys(Load.__struct_fields__, 0) | {
        "cost": cost,
        "backlog_s": 0.9,
        "late_backlog_s": 0.5,
        "tightest_slack_s": 0.0,
        "running": 3,
        "decode_step_s": 0.04,
    }
    told_s = chunked_ttft_s(ask, Load(**load), 0.3, 512)
    assert told_s == pytest.approx(waited_s + 0.04 + (before_s + 0.3) / 0.6)
    sure_s = chunked_ttft_s(ask, Load(**load), 0.3, 512, cautious=True)
    assert sure_s == pytest.approx(waited_s + 0.04 + (0.9 + 0.3) / 0.5)
