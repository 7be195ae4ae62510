"""Plans with cached prefixes: they go where the prompt's KV is when that wins, and only then."""

from __future__ import annotations

from collections import deque
from typing import Any

from contracts.cluster_io import Dispatch, PrefixesChanged, ReplicaLost, RequestEnded, ViewReported
from contracts.phase import Layout, Role
from contracts.plan import Outcome, Plan
from contracts.prefixes import PrefixChange, PromptPrefix
from contracts.request import Slo
from scheduling.cluster_core import ClusterCore

BLOCK = 16
NAMES = tuple(range(1000, 1060))


def holds(core: ClusterCore, replica_id: str, blocks: int, incarnation: str = "1", **said: Any) -> None:
    change = PrefixChange(block_size=BLOCK, added=NAMES[:blocks], **said)
    assert core.handle(PrefixesChanged(replica_id, incarnation, change), 0.0) == []


def plan_for(core: ClusterCore, cluster: Any, name: str, prompt: int = 500, now: float = 0.0, **changes: Any) -> Plan:
    prefix = PromptPrefix(block_size=BLOCK, names=NAMES[: (prompt - 1) // BLOCK])
    actions = core.handle(cluster.arrived(name, prompt, prefix=prefix, **changes), now)
    [dispatch] = [action for action in actions if isinstance(action, Dispatch)]
    return dispatch.plan


def test_a_mixed_replica_with_the_prefix_is_cheaper(cluster: Any) -> None:
    core = cluster.core()
    for name in "abc":
        core.handle(cluster.joined(name, role=Role.MIXED), 0.0)
    holds(core, "c", 20)
    plan = plan_for(core, cluster, "r")
    assert (plan.replica_id, plan.cached_tokens) == ("c", 320)
    assert "320 of 500 prompt tokens cached" in plan.reason
    assert plan.prediction.ttft_s < 0.25


def test_backlog_outweighs_a_prefix(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", role=Role.MIXED), 0.0)
    core.handle(cluster.joined("b", role=Role.MIXED, backlog_s=0.9, waiting=1, waiting_tokens=900), 0.0)
    holds(core, "b", 20)
    assert plan_for(core, cluster, "r").replica_id == "a"


def test_the_turn_passes_to_a_prefix_only_where_it_saves_more_than_it_takes(cluster: Any) -> None:
    for blocks, chosen in ((4, "a"), (28, "b")):
        core = cluster.core()
        core.handle(cluster.joined("a", slack=2.0), 0.0)
        core.handle(cluster.joined("b", slack=2.0), 0.0)
        assert plan_for(core, cluster, "first", 20).replica_id == "a"
        holds(core, "b", blocks)
        plan = plan_for(core, cluster, "r")
        assert plan.replica_id == chosen
        assert plan.layout is Layout.PHASED
        assert plan.cached_tokens == (blocks * BLOCK if chosen == "b" else 0)


def test_a_prefix_without_slack_to_compute_the_rest_is_left_alone(cluster: Any) -> None:
    core = cluster.core()
    core.handle(cluster.joined("a", slack=2.0), 0.0)
    core.handle(cluster.joined("b", slack=0.01), 0.0)
    assert plan_for(core, cluster, "first", 20).replica_id == "a"
    holds(core, "b", 28)
    assert plan_for(core, cluster, "r").replica_id == "a"


def test_a_prompt_too_long_for_its_target_is_not_late_where_most_of_it_is_cached(cluster: Any) -> None:
    core = cluster.core("a", "b")
    holds(core, "b", 50)
    plan = plan_for(core, cluster, "r", 900, slo=Slo(ttft_s=0.3, tpot_s=0.1))
    assert plan.replica_id == "b"
    assert not plan.reason.startswith("best effort")


def test_both_sides_of_a_hand_off_count_what_they_hold(cluster: Any) -> None:
    def planned(giver: int, taker: int) -> Plan:
        core = cluster.pools(cluster.core(), "p", "d")
        if giver:
            holds(core, "p", giver)
        if taker:
            holds(core, "d", taker)
        return plan_for(core, cluster, "r", layout=Layout.DISAGGREGATED, slo=Slo(ttft_s=5.0, tpot_s=0.1))

    cold, computed, kept = planned(0, 0), planned(20, 0), planned(0, 20)
    assert computed.prediction.ttft_s < cold.prediction.ttft_s == kept.prediction.ttft_s
    assert kept.prediction.transfer_s < cold.prediction.transfer_s == computed.prediction.transfer_s
    assert (cold.cached_tokens, computed.cached_tokens, kept.cached_tokens) == (0, 320, 0)


def test_what_a_lost_or_replaced_process_held_is_forgotten(cluster: Any) -> None:
    core = cluster.core("a", "b")
    holds(core, "b", 20)
    holds(core, "b", 20, incarnation="0")  # an earlier process: not listened to
    core.handle(cluster.joined("b", "2"), 0.0)
    assert core.name_prompt(range(100)) is None
    assert len(core.placement.prefixes) == 0
    holds(core, "b", 20, incarnation="1")
    assert len(core.placement.prefixes) == 0
    holds(core, "b", 20, incarnation="2", restart=True)
    assert len(core.placement.prefixes) == 20
    core.handle(ReplicaLost("b", "gone"), 0.0)
    holds(core, "b", 20, incarnation="2")
    assert len(core.placement.prefixes) == 0


def test_one_prefix_that_all_share_does_not_gather_them_on_one_replica(cluster: Any) -> None:
    """A thousand prompts of a shared prefix of 480 tokens and 20 of their own, 100 a second; four mixed replicas, of
    which one holds it. Streams last 1.5 s: more than one replica can carry within the TPOT target."""
    core = cluster.core(max_pending=2000)
    for name in "abcd":
        core.handle(cluster.joined(name, role=Role.MIXED), 0.0)
    holds(core, "a", 30)
    taken = dict.fromkeys("abcd", 0)
    running: deque[tuple[float, str, str]] = deque()
    hits, warm = 0, {"a"}
    for number in range(1000):
        now = number * 0.01
        while running and running[0][0] <= now:
            outcome = Outcome(ttft_s=0.1, switch_wait_s=0.0, tpot_s=0.01, output_tokens=32, finish="length")
            core.handle(RequestEnded(running.popleft()[1], outcome), now)
        plan = plan_for(core, cluster, f"r{number}", now=now)
        hits += plan.cached_tokens > 0
        taken[plan.replica_id] += 1
        running.append((now + 1.5, f"r{number}", plan.replica_id))
        if plan.replica_id not in warm:
            warm.add(plan.replica_id)
            holds(core, plan.replica_id, 30)
        for name in "abcd":
            count = sum(where == name for _, _, where in running)
            acked = core.placement.fleet.get(name).last_submit_index
            said = {"role": Role.MIXED, "running": count, "decode_step_s": 0.002 * count, "acked_submit_index": acked}
            core.handle(ViewReported(cluster.view(name, slack=1.0, **said)), now)
    assert sum(taken.values()) == 1000
    assert max(taken.values()) <= 1.5 * 250, taken
    assert hits >= 950
