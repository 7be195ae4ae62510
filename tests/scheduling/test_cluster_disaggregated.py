"""Plans over prefill and decode replicas: the pair, the two legs, what falls back and what is refused.

KV is 64 bytes a token in one layer; prefill takes 1 ms a token, so 64 kB/s of link keep up with one prefill replica.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClusterAction,
    Dispatch,
    DispatchPrefill,
    FirstTokenSent,
    KVReserved,
    PrefillFinished,
    RequestEnded,
    TimePassed,
    ViewReported,
)
from contracts.phase import Layout, Role
from contracts.plan import Outcome, Plan
from contracts.request import Slo
from scheduling.cluster_invariants import assert_nothing_placed, check_cluster_invariants

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")


def plan(actions: list[ClusterAction]) -> Plan:
    (found,) = [action.plan for action in actions if isinstance(action, Dispatch)]
    return found


def pair(actions: list[ClusterAction]) -> tuple[str | None, str]:
    return plan(actions).prefill_replica_id, plan(actions).replica_id


def test_one_request_over_two_replicas_from_arrival_to_end(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    assert core.ready(0.0) is None
    # 1. the decode leg is sent first; both replicas count their part
    actions = core.handle(cluster.arrived("r", 500), 0.0)
    assert [type(action) for action in actions] == [Dispatch]
    assert (actions[0].plan.layout, pair(actions)) == (Layout.DISAGGREGATED, ("p", "d"))
    prediction = actions[0].plan.prediction
    assert (prediction.ttft_s, prediction.exposed_s) == (pytest.approx(0.5), pytest.approx(0.032))
    assert (prediction.switch_wait_s, prediction.link_bytes_per_s) == (pytest.approx(0.032), 1e6)
    assert actions[0].plan.handoff_expected_s == pytest.approx(0.532)
    assert [(r.replica_id, r.unacked, r.backlog_s) for r in core.snapshot(0.0).replicas] == [("d", 1, 0), ("p", 1, 0.5)]
    # 2. the prefill leg follows the reservation, once
    assert core.handle(KVReserved("r", 0), 0.01) == [DispatchPrefill("r", 0, "p", 1)]
    for sequence in (0, 1, -1):
        assert core.handle(KVReserved("r", sequence), 0.01) == []
    check_cluster_invariants(core)
    # 3. the first token is out: the prefill replica's account is closed
    core.handle(FirstTokenSent("r"), 0.5)
    core.handle(PrefillFinished("r"), 0.5)
    assert [(r.replica_id, r.placed) for r in core.snapshot(0.5).replicas] == [("d", 1), ("p", 0)]
    # 4. it ends, and nothing is left
    core.handle(RequestEnded("r", DONE), 2.0)
    assert core.decisions()[0].plan == actions[0].plan
    assert core.snapshot(2.0).counters.disaggregated == 1
    assert_nothing_placed(core)


def test_each_choice_has_its_own_reservation(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    core.handle(cluster.arrived("r", num_sequences=2), 0.0)
    assert core.handle(KVReserved("r", 1), 0.0) == [DispatchPrefill("r", 1, "p", 1)]
    core.handle(ViewReported(cluster.view("p", role=Role.PREFILL, acked_submit_index=1)), 0.0)
    assert core.snapshot(0.0).replicas[1].unacked == 1  # the other one is still to come
    core.handle(FirstTokenSent("r"), 0.2)
    assert core.handle(KVReserved("r", 0), 0.3) == [DispatchPrefill("r", 0, "p", 2)]
    check_cluster_invariants(core)
    assert core.handle(ClientLeft("r"), 0.4) == [CancelOn("d", "r"), CancelOn("p", "r")]
    assert_nothing_placed(core)


def test_load_goes_round_both_pools(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "pq", "de")
    pairs = [pair(core.handle(cluster.arrived(f"r{i}", 300), 0.0)) for i in range(4)]
    assert sorted(giver or "" for giver, _ in pairs) == ["p", "p", "q", "q"]
    assert sorted(taker for _, taker in pairs) == ["d", "d", "e", "e"]


def test_who_measures_a_little_faster_does_not_get_everything(cluster: Any) -> None:
    core = cluster.core()
    for name in "de":
        core.handle(cluster.joined(name, role=Role.DECODE), 0.0)
    for name, rate in (("p", 1.0e6), ("q", 1.1e6)):
        links = (cluster.link("d", rate), cluster.link("e", 1.3 * rate))
        core.handle(cluster.joined(name, role=Role.PREFILL, links=links), 0.0)
    pairs = [pair(core.handle(cluster.arrived(f"r{i}", 300), 0.0)) for i in range(4)]
    for number, names in enumerate(("pq", "de")):
        assert sorted(one[number] or "" for one in pairs) == sorted(names * 2)


def test_only_linked_pairs_of_living_processes_are_used(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    core.handle(cluster.joined("e", role=Role.DECODE, slack=9.0), 0.0)
    core.handle(cluster.joined("f", incarnation="2", role=Role.DECODE), 0.0)
    links = (cluster.link("d", why_not="dtype: float32 here, bfloat16 there"), cluster.link("e"), cluster.link("f"))
    core.handle(cluster.joined("p", role=Role.PREFILL, links=links), 0.0)
    core.handle(cluster.joined("q", role=Role.PREFILL, links=links[:1]), 0.0)
    assert pair(core.handle(cluster.arrived("r"), 0.0)) == ("p", "e")


def test_the_faster_link_is_taken_and_an_unmeasured_one_is_not_trusted(cluster: Any) -> None:
    core = cluster.core(link_unmeasured_bytes_per_s=2e5)
    for name in "de":
        core.handle(cluster.joined(name, role=Role.DECODE), 0.0)
    core.handle(cluster.joined("p", role=Role.PREFILL, links=(cluster.link("d", None), cluster.link("e", 1e5))), 0.0)
    found = plan(core.handle(cluster.arrived("r"), 0.0))
    assert (found.replica_id, found.prediction.link_bytes_per_s) == ("d", 2e5)
    assert "0.2 MB/s (not measured yet)" in found.reason
    links = (cluster.link("d", None), cluster.link("e", 1e6, spread=0.1, age_s=2.0))
    core.handle(ViewReported(cluster.view("p", role=Role.PREFILL, links=links, acked_submit_index=1)), 0.0)
    found = plan(core.handle(cluster.arrived("s"), 1.0))
    assert found.replica_id == "e"
    assert "0.9 MB/s (3 s old)" in found.reason


def test_free_choice_takes_the_cheaper_layout_and_names_both(cluster: Any) -> None:
    core = cluster.pools(cluster.core("a"), "p", "d")
    # idle, a hand-off costs more than it saves
    found = plan(core.handle(cluster.arrived("r1"), 0.0))
    assert (found.layout, found.fallback) == (Layout.PHASED, None)
    assert "beats disaggregated on p->d" in found.reason
    # beside streams a phased prompt costs their slack too
    core.handle(ViewReported(cluster.view("a", slack=5.0, running=4, acked_submit_index=1)), 0.1)
    found = plan(core.handle(cluster.arrived("r2"), 0.1))
    assert found.layout is Layout.DISAGGREGATED
    assert "beats phased on a" in found.reason


@pytest.mark.parametrize("streams", [1, 2, 4])
def test_free_choice_switches_where_the_formula_says(cluster: Any, streams: int) -> None:
    """1000 tokens: 1 s of prefill, 64 kB of KV in one layer, so all of the transfer is exposed."""
    switched = []
    for rate in (10_000.0 * 1.1**i for i in range(60)):
        core = cluster.pools(cluster.core("a"), "p", "d", rate)
        core.handle(ViewReported(cluster.view("a", slack=9.0, running=streams)), 0.0)
        slo = Slo(ttft_s=20.0, tpot_s=0.1)
        is_pair = plan(core.handle(cluster.arrived("r", 1000, slo=slo), 0.0)).layout is Layout.DISAGGREGATED
        crossing_s = 64_000 / rate
        assert is_pair == (1.0 + crossing_s + 0.1 * crossing_s < 1.0 * (1 + streams)), rate
        switched.append(is_pair)
    assert switched == sorted(switched)
    assert len(set(switched)) == 2


def test_a_link_too_slow_for_the_target_is_not_used_and_the_plan_says_so(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d", 10_000.0)
    found = plan(core.handle(cluster.arrived("r", 500), 0.0))  # 32 kB take 3.2 s
    assert (found.layout, found.replica_id, found.prefill_replica_id) == (Layout.COLOCATED, "d", None)
    assert found.fallback is not None
    assert "exposed 3.200 s" in found.fallback
    assert core.snapshot(0.0).counters.fallbacks == 1
    # demanded, it is used all the same
    found = plan(core.handle(cluster.arrived("s", 500, layout=Layout.DISAGGREGATED), 0.0))
    assert (found.layout, found.fallback) == (Layout.DISAGGREGATED, None)
    assert found.reason.startswith("best effort, disaggregated p->d")
    # and so it is where computing whole is not wanted
    core = cluster.pools(cluster.core(on_unavailable="fail"), "p", "d", 10_000.0)
    assert plan(core.handle(cluster.arrived("r", 500), 0.0)).layout is Layout.DISAGGREGATED


def test_a_link_slower_than_prefill_does_not_sustain_a_busy_pool(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d", 25_000.0)
    slo = Slo(ttft_s=30.0, tpot_s=0.1)
    assert plan(core.handle(cluster.arrived("r1", 1000, slo=slo), 0.0)).layout is Layout.DISAGGREGATED
    found = plan(core.handle(cluster.arrived("r2", 1000, slo=slo), 0.0))
    assert (found.layout, found.replica_id) == (Layout.COLOCATED, "d")
    assert "not sustainable" in (found.fallback or "")


def test_what_waits_on_the_link_is_counted(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("d", role=Role.DECODE), 0.0)
    busy = {"role": Role.PREFILL, "sending": 1, "links": (cluster.link("d", 1e5, bytes_in_flight=50_000),)}
    core.handle(cluster.joined("p", **busy), 0.0)
    found = plan(core.handle(cluster.arrived("r", 100, layout=Layout.DISAGGREGATED), 0.0))
    # 6400 bytes at half the rate take 0.128 s; but 56400 at the whole rate, less 0.1 s of prefill, take 0.464 s
    assert found.prediction.exposed_s == pytest.approx(0.464)


def test_switch_wait_of_a_phased_prompt_is_what_is_prefilled_after_it(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=9.0), 0.0)
    core.handle(cluster.arrived("slow", 300, slo=Slo(ttft_s=8.0, tpot_s=0.1)), 0.0)
    found = plan(core.handle(cluster.arrived("quick", 100, slo=Slo(ttft_s=2.0, tpot_s=0.1)), 0.0))
    assert found.prediction.switch_wait_s == pytest.approx(0.3)
    found = plan(core.handle(cluster.arrived("last", 100, slo=Slo(ttft_s=9.0, tpot_s=0.1)), 0.0))
    assert found.prediction.switch_wait_s == 0.0


def test_a_large_fleet_finds_the_linked_pair(cluster: Any) -> None:
    core = cluster.core()
    takers = [f"d{i}" for i in range(8)]
    for i, name in enumerate(takers):
        core.handle(cluster.joined(name, role=Role.DECODE, slack=9.0, decode_step_s=0.01 * (i + 1)), 0.0)
    for i in range(8):
        links = tuple(cluster.link(name, why_not="no route") for name in takers[:7]) if i != 5 else ()
        good = (cluster.link("d7"),) if i == 5 else ()
        core.handle(cluster.joined(f"p{i}", role=Role.PREFILL, links=links + good), 0.0)
    assert pair(core.handle(cluster.arrived("r", slo=Slo(ttft_s=1.0, tpot_s=0.5)), 0.0)) == ("p5", "d7")


def test_pools_hold_no_leases_and_move_no_pointer(cluster: Any) -> None:
    core = cluster.pools(cluster.core(), "p", "d")
    core.handle(cluster.arrived("r"), 0.0)
    assert core.handle(TimePassed(), 1.0) == []
    snapshot = core.snapshot(1.0)
    assert snapshot.macro_instances == ()
    assert all(replica.lease_left_s == 0.0 for replica in snapshot.replicas)


def test_snapshot_shows_links_roles_and_how_good_predictions_were(cluster: Any) -> None:
    core = cluster.pools(cluster.core(link_spread_per_s=0.01), "p", "de")
    core.handle(ViewReported(cluster.view("e", role=Role.DECODE, draining=True)), 0.0)
    core.handle(cluster.arrived("r", 500), 0.0)
    core.handle(RequestEnded("r", msgspec.structs.replace(DONE, switch_wait_s=0.1)), 1.0)
    core.handle(cluster.joined("d", incarnation="2", role=Role.DECODE), 1.0)
    snapshot = core.snapshot(2.0)
    told = [(line.link.peer_id, line.why_not, line.age_s, line.counted_on_bytes_per_s) for line in snapshot.links]
    assert told[0] == ("d", "connected to an earlier process", 2.0, pytest.approx(0.98e6))
    assert told[1] == ("e", None, 2.0, pytest.approx(0.98e6))
    loads = [(line.role, line.replicas, line.open_now) for line in snapshot.roles]
    assert loads == [(Role.PREFILL, 1, 1), (Role.DECODE, 2, 1)]
    (line,) = snapshot.accuracy
    assert (line.layout, line.requests) == (Layout.DISAGGREGATED, 1)
    assert (line.ttft_error_s, line.switch_wait_error_s) == (pytest.approx(0.3), pytest.approx(0.068))


def test_same_events_same_actions(cluster: Any) -> None:
    def trace() -> list[bytes]:
        core = cluster.pools(cluster.core("a", "b"), "pq", "de")
        return [msgspec.json.encode(core.handle(cluster.arrived(f"r{i}", 50 * i + 1), i * 0.01)) for i in range(30)]

    assert trace() == trace()
