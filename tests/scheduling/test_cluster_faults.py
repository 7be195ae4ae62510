"""Replicas that die, restart, refuse or are replaced, and clients that leave: nothing is lost or answered twice."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.cluster_io import (
    CancelOn,
    ClientLeft,
    ClusterAction,
    Dispatch,
    FirstTokenSent,
    PrefillFinished,
    RefuseRequest,
    ReplicaLost,
    RequestEnded,
    RequestRefused,
    TimePassed,
    ViewReported,
)
from contracts.errors import InvalidRequest, Overloaded, Unavailable
from contracts.plan import Outcome
from scheduling.cluster_invariants import assert_nothing_placed, check_cluster_invariants

DONE = Outcome(ttft_s=0.2, switch_wait_s=0.0, tpot_s=0.01, output_tokens=10, finish="stop")
GONE = Outcome(ttft_s=None, switch_wait_s=None, tpot_s=None, output_tokens=0, finish="cancelled")
FULL = Overloaded("full", retry_after_s=1.0).info()


def told(actions: list[ClusterAction]) -> list[tuple[str, str, object]]:
    """(kind, request, replica or status) of all actions but leases."""
    found: list[tuple[str, str, object]] = []
    for action in actions:
        match action:
            case Dispatch(request_id, plan):
                found.append(("dispatch", request_id, plan.replica_id))
            case CancelOn(replica_id, request_id):
                found.append(("cancel", request_id, replica_id))
            case RefuseRequest(request_id, error):
                found.append(("refuse", request_id, error.status))
    return found


def test_lost_replica_requests_without_a_token_go_elsewhere_the_others_end_by_policy(cluster: Any) -> None:
    core = cluster.core("a", "b", on_handoff_failure="fail")
    core.handle(ViewReported(cluster.view("b", slack=0.0)), 0.0)
    assert told(core.handle(cluster.arrived("fresh"), 0.0)) == [("dispatch", "fresh", "a")]
    assert told(core.handle(cluster.arrived("streaming"), 0.0)) == [("dispatch", "streaming", "a")]
    core.handle(FirstTokenSent("streaming"), 0.1)
    core.handle(ViewReported(cluster.view("b")), 0.1)
    actions = core.handle(ReplicaLost("a", "no heartbeat"), 0.2)
    assert told(actions) == [("dispatch", "fresh", "b"), ("refuse", "streaming", 503)]
    # whatever the dead one's messages say now changes nothing
    for late in (FirstTokenSent("streaming"), PrefillFinished("streaming"), RequestEnded("streaming", GONE)):
        assert told(core.handle(late, 0.3)) == []
        check_cluster_invariants(core)
    core.handle(RequestEnded("fresh", DONE), 0.4)
    assert_nothing_placed(core)


def test_a_request_is_given_up_after_three_replicas(cluster: Any) -> None:
    core = cluster.core("a", "b", "c", "d")
    core.handle(cluster.arrived("r"), 0.0)
    assert told(core.handle(ReplicaLost("a", "x"), 0.1)) == [("dispatch", "r", "b")]
    assert told(core.handle(ReplicaLost("b", "x"), 0.2)) == [("dispatch", "r", "c")]
    actions = core.handle(ReplicaLost("c", "x"), 0.3)
    assert told(actions) == [("refuse", "r", 503)]
    assert_nothing_placed(core)


def test_last_replica_lost_ends_everything_at_once(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.15), 0.0)
    core.handle(cluster.arrived("placed"), 0.0)
    core.handle(cluster.arrived("waiting"), 0.0)
    assert core.pending_count == 1
    assert told(core.handle(ReplicaLost("a", "x"), 0.1)) == [("refuse", "placed", 503), ("refuse", "waiting", 503)]
    assert_nothing_placed(core)


def test_new_incarnation_drops_all_state_of_the_old_one(cluster: Any) -> None:
    core = cluster.core("a", on_handoff_failure="fail")
    core.handle(cluster.arrived("fresh"), 0.0)
    core.handle(cluster.arrived("second", 1), 0.0)
    core.handle(FirstTokenSent("second"), 0.1)
    actions = core.handle(cluster.joined("a", incarnation="2"), 0.2)
    assert told(actions) == [("dispatch", "fresh", "a"), ("refuse", "second", 503)]
    (again,) = [action for action in actions if isinstance(action, Dispatch)]
    assert again.submit_index == 1
    # a late heartbeat of the old process is not taken for the new one's
    core.handle(ViewReported(cluster.view("a", incarnation="1", acked_submit_index=9)), 0.3)
    (replica,) = core.snapshot(0.3).replicas
    assert (replica.incarnation, replica.unacked, replica.placed) == ("2", 1, 1)
    check_cluster_invariants(core)


def test_reconnect_of_the_same_process_keeps_its_requests(cluster: Any) -> None:
    core = cluster.core("a")
    core.handle(cluster.arrived("r"), 0.0)
    core.handle(FirstTokenSent("r"), 0.1)
    assert told(core.handle(cluster.joined("a", acked_submit_index=1, slack=1.0), 0.2)) == []
    assert told(core.handle(RequestEnded("r", DONE), 0.3)) == []
    assert core.snapshot(0.3).replicas[0].placed == 0


def test_remove_and_add_again_keeps_accounts_at_zero(cluster: Any) -> None:
    core = cluster.core("a", "b")
    for i in range(10):
        core.handle(cluster.arrived(f"r{i}", 10), 0.0)
        core.handle(FirstTokenSent(f"r{i}"), 0.0)
    core.handle(ReplicaLost("a", "removed"), 0.1)
    core.handle(cluster.joined("a", acked_submit_index=10, slack=1.0), 0.2)
    for i in range(10):
        core.handle(RequestEnded(f"r{i}", DONE), 0.3)
        check_cluster_invariants(core)
    assert [replica.placed for replica in core.snapshot(0.3).replicas] == [0, 0]
    # indices go on above what the process has acknowledged, so no new request counts as seen
    core.handle(ReplicaLost("b", "removed"), 0.4)
    (sent,) = [a for a in core.handle(cluster.arrived("next", 10), 0.5) if isinstance(a, Dispatch)]
    assert (sent.plan.replica_id, sent.submit_index) == ("a", 11)


def test_refusal_tries_another_replica_once(cluster: Any) -> None:
    core = cluster.core("a", "b")
    core.handle(cluster.arrived("r"), 0.0)
    assert told(core.handle(RequestRefused("r", "a", FULL), 0.1)) == [("dispatch", "r", "b")]
    # a repeated or late refusal by the first is no news
    assert told(core.handle(RequestRefused("r", "a", FULL), 0.1)) == []
    assert told(core.handle(RequestRefused("r", "b", FULL), 0.2)) == [("refuse", "r", 429)]
    assert_nothing_placed(core)


def test_refusal_by_the_only_replica_waits_for_its_next_view(cluster: Any) -> None:
    core = cluster.core("a")
    core.handle(cluster.arrived("r"), 0.0)
    assert told(core.handle(RequestRefused("r", "a", FULL), 0.1)) == []
    assert core.pending_count == 1
    assert told(core.handle(ViewReported(cluster.view("a", acked_submit_index=1)), 0.2)) == [("dispatch", "r", "a")]


def test_replicas_that_are_not_there_count_as_placements_not_as_refusals(cluster: Any) -> None:
    core = cluster.core("a", "b", "c", "d", max_dispatches=3)
    core.handle(cluster.arrived("r"), 0.0)
    gone, asked = Unavailable("cannot be reached").info(), ["a"]
    for _ in range(2):
        ((_, _, replica_id),) = told(core.handle(RequestRefused("r", asked[-1], gone), 0.1))
        asked.append(str(replica_id))
    assert asked[0] != asked[1] != asked[2]
    assert told(core.handle(RequestRefused("r", asked[-1], gone), 0.2)) == [("refuse", "r", 503)]
    assert_nothing_placed(core)


def test_refusal_that_would_be_repeated_anywhere_reaches_the_client(cluster: Any) -> None:
    core = cluster.core("a", "b")
    core.handle(cluster.arrived("r", num_sequences=2), 0.0)
    wrong = InvalidRequest("too long", param="max_tokens").info()
    assert told(core.handle(RequestRefused("r", "a", wrong), 0.1)) == [("cancel", "r", "a"), ("refuse", "r", 400)]
    assert_nothing_placed(core)


def test_refusal_of_one_choice_while_another_streams_ends_both_by_policy(cluster: Any) -> None:
    core = cluster.core("a", "b", on_handoff_failure="fail")
    core.handle(cluster.arrived("r", num_sequences=2), 0.0)
    core.handle(FirstTokenSent("r"), 0.1)
    error = Unavailable("draining").info()
    assert told(core.handle(RequestRefused("r", "a", error), 0.2)) == [("cancel", "r", "a"), ("refuse", "r", 503)]


def test_a_stream_goes_on_elsewhere_before_all_that_wait(cluster: Any) -> None:
    core = cluster.core("a", "b", max_pending=1)
    core.handle(cluster.arrived("stream", 300, num_sequences=2), 0.0)
    core.handle(FirstTokenSent("stream"), 0.3)
    core.handle(PrefillFinished("stream"), 0.3)
    busy = {"slack": 0.2, "running": 2, "acked_submit_index": 1}
    core.handle(ViewReported(cluster.view("a", **busy)), 0.3)
    core.handle(ViewReported(cluster.view("b", slack=0.05)), 0.3)
    core.handle(cluster.arrived("fresh", 250, priority=9), 0.4)
    assert core.pending_count == 1
    # 1. its replica dies: it needs 300 + 40 tokens computed anew, finds no slack now, and takes the queue's place
    assert told(core.handle(ReplicaLost("a", "silent", {"stream": 40}), 0.5)) == [("refuse", "fresh", 429)]
    record = core.placement.requests["stream"]
    assert (record.prompt_tokens, record.prefill_s) == (340, pytest.approx(0.34 + 0.004 + 0.001, abs=0.01))
    check_cluster_invariants(core)
    # 2. its targets run anew, so slack is worth waiting for; then it goes on, and streams again
    actions = core.handle(ViewReported(cluster.view("b", slack=0.4)), 0.6)
    assert told(actions) == [("dispatch", "stream", "b")]
    core.handle(FirstTokenSent("stream"), 0.9)
    # 3. lost a second time it goes on again, a third time it ends with a named error
    core.handle(cluster.joined("a"), 0.9)
    assert told(core.handle(ReplicaLost("b", "silent", {"stream": 60}), 1.0)) == [("dispatch", "stream", "a")]
    assert record.prompt_tokens == 360
    core.handle(cluster.joined("b"), 1.0)
    assert told(core.handle(ReplicaLost("a", "silent", {"stream": 61}), 1.1)) == [("refuse", "stream", 503)]
    assert core.snapshot(1.1).counters.resumed == 2
    assert_nothing_placed(core)


def test_a_continued_stream_has_its_own_deadline_for_its_next_token(cluster: Any) -> None:
    core = cluster.core("a", "b", first_token_deadline_s=10.0)
    core.handle(cluster.arrived("r"), 0.0)
    core.handle(FirstTokenSent("r"), 0.1)
    core.handle(ReplicaLost("a", "silent", {"r": 5}), 50.0)
    core.handle(ViewReported(cluster.view("b")), 50.0)
    assert told(core.handle(TimePassed(), 59.0)) == []
    assert told(core.handle(TimePassed(), 60.0)) == [("cancel", "r", "b"), ("refuse", "r", 504)]
    assert_nothing_placed(core)


def test_client_leaving_cancels_in_every_state_and_twice(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.25), 0.0)
    for name in ("streaming", "placed", "waiting"):
        core.handle(cluster.arrived(name), 0.0)
    core.handle(FirstTokenSent("streaming"), 0.1)
    assert told(core.handle(ClientLeft("waiting"), 0.2)) == []
    assert told(core.handle(ClientLeft("placed"), 0.2)) == [("cancel", "placed", "a")]
    assert told(core.handle(ClientLeft("streaming"), 0.2)) == [("cancel", "streaming", "a")]
    for name in ("streaming", "placed", "waiting", "nobody"):
        assert told(core.handle(ClientLeft(name), 0.3)) == []
        assert told(core.handle(RequestEnded(name, GONE), 0.3)) == []
    assert {decision.outcome for decision in core.decisions()} == {GONE}
    assert_nothing_placed(core)


def test_clients_that_leave_in_numbers_do_not_count_against_a_replica(cluster: Any) -> None:
    core = cluster.core("a")
    for i in range(50):
        core.handle(cluster.arrived(f"r{i}"), i * 0.01)
        core.handle(ClientLeft(f"r{i}"), i * 0.01 + 0.001)
    assert core.ready(0.6) is None
    for i in range(5):
        assert told(core.handle(cluster.arrived(f"s{i}"), 0.6)) == [("dispatch", f"s{i}", "a")]


def test_drain_of_the_last_replica_refuses_what_waits(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=0.0), 0.0)
    core.handle(cluster.arrived("r"), 0.0)
    actions = core.handle(ViewReported(cluster.view("a", slack=0.0, draining=True)), 0.1)
    assert told(actions) == [("refuse", "r", 503)]
    assert told(core.handle(cluster.arrived("s"), 0.2)) == [("refuse", "s", 503)]
    assert core.ready(0.2) == "a: draining"
