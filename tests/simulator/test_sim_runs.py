"""Whole runs: the same seed gives the same bytes, nothing is lost whatever fails, roles change."""

from __future__ import annotations

import msgspec
import pytest

from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from scheduling.macro_config import MacroConfig
from simulator.arrivals import Steps
from simulator.changes import Add, Change, Drain, Freeze, Kill, RestartRouter, SetLink, SetRoleTo
from simulator.goodput import Point, at_rate, goodput_of
from simulator.lengths import Constant, LogNormal
from simulator.run import Run, Unfinished, simulate
from simulator.scenario import Scaling, Scenario
from simulator.scenarios import small
from simulator.workload import RequestClass, SharedPrefixes

PROMPT, OUTPUT = LogNormal(mean=250.0, median=150.0, most=1000), LogNormal(mean=40.0, median=25.0, most=200)


def disaggregated(**wanted: object) -> Scenario:
    settings = {"prefill": 2, "decode": 2, "rate": 8.0, "duration_s": 12.0, "prompt": PROMPT, "output": OUTPUT}
    return small(**{**settings, **wanted})  # type: ignore[arg-type]


def phased(**wanted: object) -> Scenario:
    settings = {"alternating": 3, "rate": 8.0, "duration_s": 12.0, "prompt": PROMPT, "output": OUTPUT}
    return small(**{**settings, **wanted})  # type: ignore[arg-type]


def changed(scenario: Scenario, *changes: Change) -> Scenario:
    return msgspec.structs.replace(scenario, changes=changes)


def test_the_same_seed_gives_the_same_bytes_and_another_one_does_not() -> None:
    scenario = changed(disaggregated(alternating=1, noise=0.1), Kill(at_s=5.0, replica_id="decode-1", restart_s=2.0))
    first, second = simulate(scenario).json(), simulate(scenario).json()
    assert first == second
    assert simulate(msgspec.structs.replace(scenario, seed=1)).json() != first


@pytest.mark.parametrize(
    "change",
    [
        Kill(at_s=5.0, replica_id="decode-1", restart_s=2.0),
        Kill(at_s=5.013, replica_id="prefill-0"),
        Freeze(at_s=5.0, replica_id="decode-0", for_s=6.0),
        Freeze(at_s=5.0, replica_id="prefill-1", for_s=1.0),
        SetLink(at_s=5.0, bytes_per_s=0.0, replica_id="decode-0"),
        SetLink(at_s=5.0, bytes_per_s=2e7),
        Drain(at_s=5.0, replica_id="decode-1"),
    ],
    ids=lambda change: f"{type(change).__name__}-{getattr(change, 'replica_id', '')}",
)
def test_every_request_is_answered_in_full_whatever_fails_beside_it(change: Change) -> None:
    """`simulate` itself asserts that nothing is left anywhere and that each request ended once."""
    report = simulate(changed(disaggregated(), change))
    assert report.finished == report.arrived > 50
    assert report.handed_over > 20


def test_a_router_that_restarts_loses_what_was_under_way_and_nothing_else() -> None:
    run = Run(changed(phased(), RestartRouter(at_s=6.0, restart_s=0.5)))
    report = run.finish()
    assert set(report.refused) == {"503"}
    assert 0 < report.refused["503"] < 40
    assert report.finished + report.refused["503"] == report.arrived


def test_a_killed_replica_shows_where_its_requests_went() -> None:
    report = simulate(changed(phased(), Kill(at_s=6.0, replica_id="alternating-1")))
    assert report.placed_again > 0
    lost = next(replica for replica in report.replicas if replica.replica_id == "alternating-1")
    assert lost.alive_s == pytest.approx(6.0, abs=0.01)


def test_roles_change_and_work_moves_with_them() -> None:
    report = simulate(
        changed(
            phased(),
            SetRoleTo(at_s=4.0, replica_id="alternating-1", role=Role.PREFILL),
            SetRoleTo(at_s=4.0, replica_id="alternating-2", role=Role.DECODE),
        )
    )
    assert {(change.replica_id, change.role) for change in report.roles[3:]} == {
        ("alternating-1", "prefill"),
        ("alternating-2", "decode"),
    }
    assert all(4.0 < change.at_s < 4.3 for change in report.roles[3:])
    assert report.layouts["disaggregated"] > 10
    assert report.finished == report.arrived


def test_replicas_that_are_added_take_their_share() -> None:
    """Twelve alternating replicas are more than one macro instance holds: mitosis."""
    report = simulate(changed(phased(rate=12.0), Add(at_s=4.0, count=9)))
    assert len(report.replicas) == 12
    assert all(replica.steps > 0 for replica in report.replicas)
    assert "macro_split" in {decision.kind for decision in report.fleet_decisions}


def test_proposals_of_the_core_are_followed() -> None:
    """One replica is too few: the mean TTFT exceeds its target, so the core asks for more."""
    scenario = phased(alternating=1, rate=12.0, duration_s=50.0, slo=Slo(ttft_s=0.5, tpot_s=0.1))
    macro = MacroConfig(window_s=5.0, propose_every_s=10.0)
    cluster = ClusterCoreConfig(macro=macro)
    run = Run(msgspec.structs.replace(scenario, cluster=cluster, scaling=Scaling(most=3, provision_s=1.0)))
    report = run.finish()
    assert any(change > 0 for _, change, _ in report.proposals)
    alive = [place for place in run.fleet.places.values() if place.body.alive]
    assert len(report.replicas) > 1
    assert len(alive) <= 3


def test_requests_go_where_their_prefix_is_cached() -> None:
    """Eight prefixes of 512 tokens, more than one in each replica's share of the prompts: most of each is a hit."""
    scenario = phased(prompt=Constant(tokens=600), scheduling=ReplicaCoreConfig(max_running=256, max_chunk=2048))
    shared = SharedPrefixes(count=8, tokens=512)
    workload = msgspec.structs.replace(scenario.workload, shared=shared)
    report = simulate(msgspec.structs.replace(scenario, workload=workload))
    prompts = 600 * report.arrived
    hits = sum(replica.prefix_hit_tokens for replica in report.replicas)
    assert hits > 0.5 * prompts
    assert sum(replica.prompt_tokens for replica in report.replicas) == prompts - hits


def test_classes_and_keys_are_told_apart() -> None:
    classes = (
        RequestClass(name="chat", share=3.0, priority=1, slo=Slo(ttft_s=2.0, tpot_s=0.1)),
        RequestClass(name="batch", share=1.0, slo=Slo(ttft_s=60.0, tpot_s=1.0)),
    )
    scenario = phased()
    workload = msgspec.structs.replace(scenario.workload, classes=classes, clients=4)
    report = simulate(msgspec.structs.replace(scenario, workload=workload))
    arrived = {entry.name: entry.arrived for entry in report.classes}
    assert arrived["chat"] > 2 * arrived["batch"] > 0
    assert 0.9 < report.jain_tokens <= 1.0


def test_a_burst_shows_in_the_windows_and_in_the_recovery() -> None:
    steps = Steps(rates=(2.0, 40.0, 2.0), step_s=10.0)
    scenario = phased(alternating=1, arrivals=steps, duration_s=60.0, slo=Slo(ttft_s=1.0, tpot_s=0.2))
    report = simulate(msgspec.structs.replace(scenario, window_s=2.0))
    assert report.recovery_s >= 4.0
    assert max(window.arrived for window in report.windows) > 4 * report.windows[0].arrived


def test_a_scan_finds_the_last_good_rate() -> None:
    scenario = phased(alternating=1, slo=Slo(ttft_s=1.0, tpot_s=0.1), duration_s=8.0)
    reports = {rate: simulate(at_rate(scenario, rate)) for rate in (2.0, 40.0)}
    found = goodput_of([Point(rate, one.attained, one.ecoserve.attained) for rate, one in reports.items()], 0.9)
    assert found.goodput == 2.0
    assert found.points[0].attained > 0.9 > found.points[1].attained


def test_dips_are_reported() -> None:
    points = [Point(1.0, 0.95, 1.0), Point(2.0, 0.7, 1.0), Point(3.0, 0.92, 1.0), Point(4.0, 0.5, 0.1)]
    found = goodput_of(points, 0.9)
    assert (found.goodput, found.goodput_ecoserve, found.dips) == (3.0, 3.0, (2.0,))


def test_a_rate_must_be_positive() -> None:
    with pytest.raises(ConfigError, match="rate must be positive"):
        at_rate(phased(), 0.0)


def test_a_change_to_a_stranger_is_named_before_the_run_begins() -> None:
    for at_s in (1.0, 1e6):
        with pytest.raises(ConfigError, match="there is no replica decode-9 at"):
            changed(phased(), Kill(at_s=at_s, replica_id="decode-9"))
    drained = Drain(at_s=5.0, replica_id="alternating-1")
    with pytest.raises(ConfigError, match=r"no replica alternating-1 at 5 s; there are alternating-0$"):
        changed(phased(alternating=1), drained, Add(at_s=5.0))
    changed(phased(alternating=1), Add(at_s=5.0), drained)
    with pytest.raises(ConfigError, match=r"there are alternating-0, .*alternating-7, \.\.\."):
        changed(phased(alternating=500), Freeze(at_s=0.0, for_s=1.0, replica_id="alternating-01"))


def test_a_replica_that_scaling_may_bring_is_asked_for_when_it_is_time() -> None:
    scenario = msgspec.structs.replace(phased(alternating=1), scaling=Scaling(most=2))
    with pytest.raises(ConfigError, match="there is no replica alternating-7"):
        simulate(changed(scenario, Kill(at_s=1.0, replica_id="alternating-7")))


def test_a_run_beyond_all_bounds_is_refused() -> None:
    for wrong, says in (
        ({"alternating": 100_000_000}, "100,000,000 replicas: a run has at most 100,000"),
        ({"rate": 1e7}, "requests: a run has at most 100,000,000"),
        ({"num_requests": 1_000_000_000}, "1,000,000,000 requests"),
        ({"duration_s": 1e9}, r"duration_s is 1e\+09: a run has at most"),
        ({"arrivals": Steps(rates=(1.0, 1e9), step_s=10.0)}, "requests: a run has at most"),
    ):
        with pytest.raises(ConfigError, match=says):
            phased(**wrong)
    with pytest.raises(ConfigError, match="100,001 replicas"):
        changed(phased(alternating=1), Add(at_s=1.0, count=100_000))
    assert Steps(rates=(1.0, 3.0, 2.0), step_s=10.0).expected(25.0) == 50.0
    assert Steps(rates=(1.0, 3.0, 2.0), step_s=10.0).expected(5.0) == 5.0


def test_a_run_that_cannot_end_says_so() -> None:
    """Two outputs of 2000 tokens take a minute at least."""
    scenario = phased(alternating=1, rate=2.0, duration_s=1.0, output=Constant(tokens=2000))
    with pytest.raises(Unfinished, match="requests had not ended"):
        simulate(msgspec.structs.replace(scenario, patience_s=10.0))


@pytest.mark.parametrize("roles", [{"alternating": 2}, {"prefill": 1, "decode": 1}])
def test_gaps_by_the_two_clocks_differ_by_the_switch_waits(roles: dict[str, int]) -> None:
    report = simulate(small(rate=3.0, duration_s=12.0, **roles))  # type: ignore[arg-type]
    usual, ecoserve, wait = report.itl_s, report.itl_ecoserve_s, report.switch_wait_s
    assert report.finished == report.arrived
    assert usual.count == ecoserve.count > report.finished
    assert wait.mean > 0.0
    assert (usual.mean - ecoserve.mean) * usual.count == pytest.approx(wait.mean * wait.count, rel=0.01)
    assert ecoserve.most <= usual.most
