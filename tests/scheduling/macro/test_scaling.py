"""When a fleet of macro instances proposes one replica more or fewer: EcoServe's Eqs. 1 and 2, with our bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from contracts.cluster_io import FirstTokenSent, ProposeReplicas, TimePassed, ViewReported
from contracts.errors import ConfigError
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore
from scheduling.macro_config import MacroConfig
from scheduling.window_mean import WindowMean

MACRO = MacroConfig(least=2, most=3, window_s=8.0, propose_every_s=20.0)
NAMES = ("a", "b", "c", "d")


def play(
    cluster: Any, core: ClusterCore, until: float, slack: Callable[[str], float | None], start: float = 0.0
) -> list[tuple[float, ProposeReplicas]]:
    """Views and ticks each half second; returns what was proposed, and when."""
    proposed = []
    for tick in range(int((until - start) * 2)):
        now = start + tick / 2
        for name in NAMES:
            if core.placement.fleet.get(name) is not None:
                core.handle(ViewReported(cluster.view(name, slack=slack(name), acked_submit_index=9999)), now)
        actions = core.handle(TimePassed(), now)
        proposed += [(now, action) for action in actions if isinstance(action, ProposeReplicas)]
    return proposed


def serve(cluster: Any, core: ClusterCore, at: float, ttft_s: float, *names: str, prompt_tokens: int = 100) -> None:
    """Requests with a TTFT target of 1 s, the first tokens of which go out after `ttft_s`."""
    for name in names:
        core.handle(cluster.arrived(name, prompt_tokens, slo=Slo(ttft_s=1.0, tpot_s=0.1)), at)
    for name in names:
        core.handle(FirstTokenSent(name), at + ttft_s)


def test_expand_when_the_mean_ttft_is_over_its_target(cluster: Any) -> None:
    """Eq. 1. The mean counts: one late request among punctual ones proposes nothing."""
    core = cluster.core("a", "b", macro=MACRO)
    serve(cluster, core, 0.0, 0.2, "p0", "p1", "p2", "p3")
    serve(cluster, core, 0.3, 1.5, "late")
    assert core.handle(TimePassed(), 1.8) == []
    serve(cluster, core, 1.8, 1.6, "q0", "q1", "q2", "q3", "q4")
    (proposal,) = [a for a in core.handle(TimePassed(), 3.4) if isinstance(a, ProposeReplicas)]
    assert proposal.change == 1
    decision = core.fleet_decisions()[0]
    assert (decision.kind, decision.reason) == ("propose_more", proposal.reason)
    mean_s = (4 * 0.2 + 1.5 + 5 * 1.6) / 10
    assert decision.numbers == pytest.approx(
        {"ttft_mean_s": mean_s, "ttft_target_s": 1.0, "requests": 10, "replicas": 2}
    )
    assert f"mean TTFT {mean_s:.3f} s over 1.000 s" in proposal.reason


def test_a_proposal_is_not_repeated_before_its_time_nor_after_its_reason(cluster: Any) -> None:
    core = cluster.core("a", "b", macro=MACRO)
    serve(cluster, core, 0.0, 1.5, "r")
    assert [now for now, _ in play(cluster, core, 6.0, lambda _: 0.5, start=1.5)] == [1.5]
    # 1. still over the target when the time has passed: again
    assert play(cluster, core, 20.0, lambda _: 0.5, start=6.0) == []
    serve(cluster, core, 20.0, 1.5, "s")
    assert [now for now, _ in play(cluster, core, 25.0, lambda _: 0.5, start=21.5)] == [21.5]
    # 2. what was late is out of the window
    assert play(cluster, core, 60.0, lambda _: 0.5, start=41.5) == []


def test_a_prompt_that_is_late_even_alone_calls_for_no_replica(cluster: Any) -> None:
    core = cluster.core("a", "b", macro=MACRO)
    serve(cluster, core, 0.0, 3.1, "long", prompt_tokens=3000)
    assert play(cluster, core, 6.0, lambda _: 0.5, start=3.5) == []


def test_requests_that_wait_in_vain_call_for_a_replica(cluster: Any) -> None:
    core = cluster.core("a", macro=MACRO, pending_deadline_s=3.0)
    core.handle(ViewReported(cluster.view("a", slack=0.01)), 0.0)
    core.handle(cluster.arrived("r", slo=Slo(ttft_s=1.0, tpot_s=0.1)), 0.1)
    core.handle(ViewReported(cluster.view("a", slack=0.01, waiting=256)), 0.2)
    proposed = play_full(cluster, core)
    assert [action.change for action in proposed] == [1]


def play_full(cluster: Any, core: ClusterCore) -> list[ProposeReplicas]:
    """The only replica has no room until the pending request has expired."""
    found = []
    for tick in range(1, 10):
        core.handle(ViewReported(cluster.view("a", slack=0.01, waiting=256)), tick / 2)
        found += [a for a in core.handle(TimePassed(), tick / 2) if isinstance(a, ProposeReplicas)]
    return found


@pytest.mark.parametrize(("num", "limit_s"), [(1, None), (2, 1.5), (3, 4 / 3)])
def test_contract_when_more_tpot_is_saved_than_the_limit(cluster: Any, num: int, limit_s: float | None) -> None:
    """Eq. 2: S_TTFT * (n + 1) / n. The last replica stays whatever it saves."""
    for over in (False, True):
        core = cluster.core(*NAMES[:num], macro=MACRO)
        serve(cluster, core, 0.0, 0.2, "r")
        saved_s = 100.0 if limit_s is None else limit_s + (0.01 if over else -0.01)
        saved = dict.fromkeys(NAMES, saved_s)
        proposed = play(cluster, core, 12.0, saved.get, start=0.5)
        assert [action.change for _, action in proposed] == ([-1] if over and limit_s is not None else [])
        if proposed:
            now, action = proposed[0]
            assert now == 0.5 + MACRO.window_s  # judged over one whole window
            assert core.fleet_decisions()[0].numbers["limit_s"] == pytest.approx(limit_s)
            assert core.fleet_decisions()[0].replica_id == NAMES[1]  # a has a request, the next has none
            assert action.reason == core.fleet_decisions()[0].reason


def test_one_macro_instance_with_too_little_slack_keeps_all(cluster: Any) -> None:
    """Two macro instances, {a, c} and {b, d}: whoever has too many would give, not go."""
    core = cluster.core(*NAMES, macro=MACRO)
    serve(cluster, core, 0.0, 0.2, "r")
    assert play(cluster, core, 12.0, lambda name: 9.0 if name in "ac" else 0.4) == []
    core = cluster.core(*NAMES, macro=MACRO)
    serve(cluster, core, 0.0, 0.2, "r")
    assert [action.change for _, action in play(cluster, core, 12.0, lambda _: 9.0)] == [-1]


@pytest.mark.parametrize(("step_s", "change"), [(0.02, -1), (0.03, None), (0.06, None), (0.07, 1)])
def test_the_decode_step_that_turns_sustain_bounds_both_ways(cluster: Any, step_s: float, change: int | None) -> None:
    """TPOT target 0.1 s, three in turns: over 0.95 * 0.1 * 2 / 3 one more; with one fewer the step would be 3 / 2 as
    long, and 0.7 * 0.1 / 2 is what two may have."""
    core = cluster.core("a", "b", "c", macro=MACRO)
    serve(cluster, core, 0.0, 0.2, "r")
    proposed = []
    for tick in range(1, 24):
        for name in "abc":
            view = cluster.view(name, slack=9.0, decode_step_s=step_s, acked_submit_index=9999)
            core.handle(ViewReported(view), tick / 2)
        proposed += [a.change for a in core.handle(TimePassed(), tick / 2) if isinstance(a, ProposeReplicas)]
    assert proposed == ([] if change is None else [change])
    if change == 1:
        assert "mean decode step 0.0700 s over 0.0633 s in m1 with 3" in core.fleet_decisions()[0].reason


def test_a_fleet_without_a_stream_can_be_smaller(cluster: Any) -> None:
    core = cluster.core("a", "b", macro=MACRO)
    ((now, action),) = play(cluster, core, 12.0, lambda _: None)
    assert (now, action.change) == (MACRO.window_s, -1)
    assert "no stream" in action.reason


def test_a_change_of_size_starts_the_window_anew(cluster: Any) -> None:
    core = cluster.core("a", "b", macro=MACRO)
    assert play(cluster, core, 6.0, lambda _: 9.0) == []
    core.handle(cluster.joined("c"), 6.0)
    ((now, _),) = play(cluster, core, 16.0, lambda _: 9.0, start=6.0)
    assert now == 6.0 + MACRO.window_s


def test_ttft_near_its_target_keeps_all_however_much_is_saved(cluster: Any) -> None:
    """With one of two gone the other could not keep a mean of 0.6 s below 1 s."""
    core = cluster.core("a", "b", macro=MACRO)
    proposed = []
    for second in range(12):
        serve(cluster, core, float(second), 0.6, f"r{second}")
        proposed += play(cluster, core, second + 1.0, lambda _: 9.0, start=second + 0.6)
    assert proposed == []


def test_the_window_mean_forgets() -> None:
    window = WindowMean(16.0)
    window.add(0.5, 1.0)
    window.add(0.6, 3.0, weight=3.0)
    window.add(10.0, 5.0)
    assert window.mean(10.0) == pytest.approx(3.0)
    assert window.weight(10.0) == 5.0
    assert window.mean(15.9) == pytest.approx(3.0)
    assert window.mean(16.1) == pytest.approx(5.0)
    assert window.mean(30.0) is None


@pytest.mark.parametrize("name", ["cooldown_s", "window_s", "propose_every_s"])
def test_times_that_are_none_are_refused(name: str) -> None:
    with pytest.raises((ConfigError, msgspec.ValidationError), match=rf"macro\.{name}"):
        msgspec.convert({name: 0.0}, MacroConfig)
