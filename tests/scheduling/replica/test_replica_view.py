"""What a replica says about itself."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Phase, Role
from contracts.replica_io import DrainRequested, LeaseGranted
from contracts.request import Slo
from contracts.views import SLACK_QUANTILES, StepCost
from scheduling.config import ReplicaCoreConfig

Lab = Any


def test_an_idle_replica(replica_lab: Lab, lab_cost: StepCost) -> None:
    lab = replica_lab()
    view = lab.core.view(lab.now, "replica-0", "abc")
    assert (view.replica_id, view.incarnation, view.role) == ("replica-0", "abc", Role.ALTERNATING)
    assert (view.waiting, view.running, view.backlog_s, view.step_age_s) == (0, 0, 0.0, 0.0)
    assert view.free_blocks == view.num_blocks == 256
    assert view.slack_quantiles_s == ()
    assert view.decode_step_s == 0.0
    assert view.cost.a1 == pytest.approx(lab_cost.a1)


def test_a_busy_replica(replica_lab: Lab) -> None:
    lab = replica_lab(config=ReplicaCoreConfig(max_running=2))
    for index, tpot_s in enumerate((0.1, 0.3)):
        lab.arrive(f"r{index}", 10, 40, slo=Slo(tpot_s=tpot_s, ttft_s=0.1), submit_index=index + 5)
    assert lab.core.view(lab.now, "r", "i").acked_submit_index == 6
    while len(lab.core.state.decoding) < 2 or lab.core.state.clock.phase is not Phase.DECODE:
        lab.step()
    lab.step()
    lab.arrive("waiting", 100, waited_s=2.0)
    lab.send(LeaseGranted(3.0))
    lab.now += 0.004
    view = lab.core.view(lab.now, "r", "i")
    assert (view.waiting, view.waiting_tokens, view.running) == (1, 100, 2)
    assert view.oldest_waiting_s == pytest.approx(2.004)
    assert view.backlog_s == pytest.approx(0.010 + 0.001 * 100 + 1e-8 * 100 * 100, rel=1e-3)
    assert view.lease_left_s == pytest.approx(2.996)
    assert view.step_age_s == pytest.approx(0.004)
    assert view.phase is Phase.DECODE
    assert view.decode_step_s == pytest.approx(lab.duration(lab.in_flight), rel=1e-6)
    expected = sorted(s.deadline - lab.now for s in lab.core.state.decoding.values())
    assert len(view.slack_quantiles_s) == len(SLACK_QUANTILES)
    assert (view.slack_quantiles_s[0], view.slack_quantiles_s[-1]) == (expected[0], expected[1])
    assert view.slack_mean_s == pytest.approx(sum(expected) / 2)
    assert view.free_blocks < view.num_blocks
    lab.send(DrainRequested())
    assert lab.core.view(lab.now, "r", "i").draining
    lab.run()
    assert lab.core.view(lab.now, "r", "i").steps_done == len(lab.batches)


@pytest.mark.parametrize(("rule", "late_s"), [("deadline", 0.04), ("sarathi(64)", 0.0)])
def test_late_prompts_are_told_apart_where_they_come_last(replica_lab: Lab, rule: str, late_s: float) -> None:
    """1 ms a token and 1e-8 s for each pair of a token with itself or one before it, those of one chunk twice: little
    more than once in all, for it is 48 tokens that fit beside the streams, not `max_chunk`."""
    config = ReplicaCoreConfig(admission=rule, max_running=2, max_chunk=512)
    lab = replica_lab(Role.MIXED, config=config, num_blocks=400, block_size=16, max_context=4096)
    lab.arrive("stream", 10, 100, slo=Slo(ttft_s=9.0, tpot_s=0.06))
    lab.step()
    lab.arrive("filler", 40, 100, slo=Slo(ttft_s=9.0, tpot_s=0.06))
    while len(lab.core.state.decoding) < 2:
        lab.step()
    lab.arrive("late", 40, slo=Slo(ttft_s=0.5, tpot_s=0.06), waited_s=1.0)
    lab.arrive("punctual", 2000, slo=Slo(ttft_s=9.0, tpot_s=0.06))
    view = lab.core.view(lab.now, "r", "i")
    assert view.late_backlog_s == pytest.approx(late_s, rel=1e-2)
    if rule == "deadline":
        assert view.backlog_s == pytest.approx(0.040 + 2.0 + 1e-8 * 2000 * (2000 + 48) / 2, abs=5e-4)
