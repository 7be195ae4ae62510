"""Fair shares between keys: turns, charges, bounds; priorities and the bounds of the pending queue."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.cluster_io import ClientRequestArrived, Dispatch, RefuseRequest, TimePassed, ViewReported
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.cluster_invariants import check_cluster_invariants
from scheduling.cluster_requests import RequestRecord
from scheduling.fair_share import OTHERS, FairShares, jain_index
from scheduling.fairness_config import FairnessConfig


def request(name: str, key: str, prefill_s: float = 0.1) -> RequestRecord:
    asked = ClientRequestArrived(request_id=name, prompt_tokens=10, max_tokens=10, key=key, slo=Slo(ttft_s=1.0))
    return RequestRecord(asked, 0.0, prefill_s)


def test_keys_are_served_in_proportion_to_their_weights_within_a_quantum() -> None:
    """Whatever the prompts are like; each key's requests keep their order."""
    shares = FairShares(FairnessConfig(quantum_s=0.5, weights={"b": 3.0}))
    queues: dict[str, list[RequestRecord]] = {}
    for key, prefill_s in (("a", 0.4), ("b", 0.1), ("c", 0.05)):
        queues[key] = [request(f"{key}{i}", key, prefill_s) for i in range(200)]
        for record in queues[key]:
            shares.arrived(record, 0.0)
    served = dict.fromkeys(queues, 0.0)
    order = shares.interleave(queues)
    assert [r.request_id for r in order if r.asked.key == "a"] == [r.request_id for r in queues["a"]]
    for record in order:
        served[record.asked.key] += record.prefill_s
        if served["c"] > 6.0:
            break
        assert abs(served["a"] - served["c"]) <= 0.5 + 0.4
        assert abs(served["b"] / 3.0 - served["c"]) <= 0.5 + 0.1


def test_a_key_that_comes_back_has_banked_nothing_and_owes_nothing_from_when_it_was_alone() -> None:
    shares = FairShares(FairnessConfig())
    for number in range(50):
        heavy = request(f"h{number}", "heavy", 2.0)
        shares.arrived(heavy, 0.0)
        shares.placed(heavy, 0.0, 0)
    light = request("l", "light")
    shares.arrived(light, 1.0)
    used = {key: account.used_s for key, account in shares.accounts.items()}
    assert used == {"heavy": pytest.approx(100.0), "light": pytest.approx(100.0)}
    waiting = [shares.account_of(light)]
    late = request("h", "heavy")
    shares.arrived(late, 1.0)
    assert shares.comes_before(waiting, late)  # of one round, the one that came into it earlier


def test_a_charge_becomes_what_was_used_and_is_given_back_when_a_replica_failed() -> None:
    shares = FairShares(FairnessConfig())
    record = request("r", "k", 1.0)
    shares.arrived(record, 0.0)
    shares.placed(record, 0.01, 100)
    account = shares.account_of(record)
    assert account.used_s == pytest.approx(2.0)
    assert account.backlog_s == 1.0
    shares.taken_back(record)
    assert (account.used_s, account.backlog_s) == (0.0, 0.0)
    shares.placed(record, 0.01, 100)
    shares.prefilled(record)
    assert account.backlog_s == 0.0
    outcome = Outcome(ttft_s=0.5, switch_wait_s=0.0, tpot_s=0.01, output_tokens=300, finish="stop")
    shares.ended(record, outcome)
    shares.left(record, 9.0)
    assert account.used_s == account.served_s == pytest.approx(4.0)
    assert (account.unfinished, account.attained) == (0, 1)


def test_accounts_are_bounded_and_forgotten() -> None:
    shares = FairShares(FairnessConfig(max_keys=8, forget_s=10.0))
    for number in range(100):
        record = request(f"r{number}", f"k{number}")
        shares.arrived(record, 0.0)
        shares.placed(record, 0.0, 0)
    assert len(shares.accounts) == 9
    assert shares.accounts[OTHERS].unfinished == 92
    shares.forget(100.0)
    assert len(shares.accounts) == 9  # with requests none is forgotten
    for number in range(8):
        shares.left(request(f"r{number}", f"k{number}"), 100.0)
    shares.arrived(request("new", "new"), 109.0)
    assert len(shares.accounts) == 9  # no room yet: it is one of the others
    shares.arrived(request("newer", "newer"), 111.0)
    assert set(shares.accounts) == {OTHERS, "newer"}


def test_jain() -> None:
    assert jain_index([]) == jain_index([0.0]) == jain_index([3.0, 3.0]) == 1.0
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25


def blocked(cluster: Any, **changes: Any) -> Any:
    """One replica without any slack: what comes waits."""
    core = cluster.core(**changes)
    core.handle(cluster.joined("a", slack=0.0, waiting=1, backlog_s=0.5), 0.0)
    return core


def test_the_light_key_goes_next_however_many_of_the_heavy_one_wait(cluster: Any) -> None:
    core = blocked(cluster)
    for number in range(20):
        core.handle(cluster.arrived(f"h{number}", 500, key="heavy", slo=Slo(ttft_s=30.0, tpot_s=0.1)), 0.0)
    core.handle(cluster.arrived("light", 500, key="light", slo=Slo(ttft_s=30.0, tpot_s=0.1)), 0.1)
    punctual, _ = core.placement.pending.in_order(0.1)
    assert "light" in [record.request_id for record in punctual[:2]]
    core.handle(cluster.arrived("vip", 500, key="heavy", priority=1, slo=Slo(ttft_s=30.0, tpot_s=0.1)), 0.1)
    punctual, _ = core.placement.pending.in_order(0.1)
    assert punctual[0].request_id == "vip"  # priority before shares


def test_a_full_queue_makes_room_for_a_light_key_and_for_priority(cluster: Any) -> None:
    core = blocked(cluster, max_pending=8)
    for number in range(8):
        core.handle(cluster.arrived(f"h{number}", 100, key="heavy"), 0.0)
    (refused, *_) = [a for a in core.handle(cluster.arrived("l", key="light"), 0.1) if isinstance(a, RefuseRequest)]
    assert (refused.request_id, refused.error.status) == ("h7", 429)
    (refused, *_) = [a for a in core.handle(cluster.arrived("h8", key="heavy"), 0.1) if isinstance(a, RefuseRequest)]
    assert refused.request_id == "h8"
    actions = core.handle(cluster.arrived("vip", key="heavy", priority=1), 0.1)
    assert [a.request_id for a in actions if isinstance(a, RefuseRequest)] == ["l"]
    check_cluster_invariants(core)


@pytest.mark.parametrize(
    ("bounds", "changes"),
    [({"max_pending": 8}, {"num_sequences": 9}), ({"max_pending_s": 0.25}, {"prompt_tokens": 300})],
)
def test_nobody_is_turned_away_for_a_request_that_would_not_fit_all_the_same(
    cluster: Any, bounds: dict[str, Any], changes: dict[str, Any]
) -> None:
    """By number or by prefill, and whatever its priority: it is refused itself, and at once."""
    core = blocked(cluster, **bounds)
    core.handle(cluster.arrived("low", priority=0), 0.0)
    core.handle(cluster.arrived("equal", priority=1), 0.0)
    actions = core.handle(cluster.arrived("large", priority=1, **changes), 0.1)
    assert [a.request_id for a in actions if isinstance(a, RefuseRequest)] == ["large"]
    assert core.pending_count == 2


def test_sch9_n_counts_n_times_and_what_is_over_the_bound_is_told_when_to_come_back(cluster: Any) -> None:
    core = blocked(cluster, max_pending=8)
    core.handle(cluster.arrived("r0", num_sequences=7), 0.0)
    actions = core.handle(cluster.arrived("r1", num_sequences=2), 0.0)
    (refused,) = [action for action in actions if isinstance(action, RefuseRequest)]
    assert refused.error.status == 429
    assert refused.error.retry_after_s is not None
    core.handle(cluster.arrived("r2"), 0.0)
    assert core.pending_count == 2


def test_retry_after_follows_the_rate_at_which_the_backlog_shrinks(cluster: Any) -> None:
    """A replica that prefills a tenth of the time works 8 s off in 80."""
    core = cluster.core("a")
    turns = core.placement.turns
    core.handle(ViewReported(cluster.view("a", slack=0.0, waiting=1, backlog_s=8.0)), 0.0)
    core.handle(cluster.arrived("r", 100), 0.0)
    assert turns.retry_after_s(0.0) == pytest.approx(8.1)
    for second in range(1, 21):
        turns.prefilled(RequestRecord(cluster.arrived("x"), 0.0, 0.1), float(second))
    assert turns.retry_after_s(20.0) == pytest.approx(81.0, rel=0.02)


def run(cluster: Any, steps: list[tuple[int, int, int, int]]) -> list[str]:
    """A core under random arrivals of three keys, views with and without slack, and time; its dispatches."""
    core = cluster.core("a", "b", max_pending=6, max_pending_s=2.0, pending_deadline_s=5.0)
    seen, now, acked = [], 0.0, {"a": 0, "b": 0}
    for number, (kind, key, size, priority) in enumerate(steps):
        now += 0.05
        if kind <= 2:
            asked = cluster.arrived(
                f"r{number}", 50 + size * 100, key="xyz"[key], priority=priority, num_sequences=1 + size % 2
            )
            actions = core.handle(asked, now)
        elif kind == 3:
            name = "ab"[key % 2]
            view = cluster.view(name, slack=size / 10, waiting=size % 3, acked_submit_index=acked[name])
            actions = core.handle(ViewReported(view), now)
        else:
            actions = core.handle(TimePassed(), now)
        for action in actions:
            if isinstance(action, Dispatch):
                seen.append(f"{action.request_id}@{action.plan.replica_id}")
                acked[action.plan.replica_id] = action.submit_index
        pending = core.placement.pending
        if len(pending) > 1:
            assert pending.num_sequences <= 6
            assert pending.prefill_s <= 2.0 + 1e-9
        check_cluster_invariants(core)
        total_s = sum(account.backlog_s for account in core.placement.shares.accounts.values())
        assert total_s == pytest.approx(core.placement.shares.total_backlog_s, abs=1e-6)
    return seen


@settings(max_examples=25, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 2), st.integers(0, 9), st.integers(0, 1)), min_size=5, max_size=60
    )
)
def test_the_bounds_hold_and_the_same_events_give_the_same_actions(cluster: Any, steps: Any) -> None:
    assert run(cluster, steps) == run(cluster, steps)
