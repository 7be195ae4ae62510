"""Prefill windows inside an alternating replica under every rule: where they are cut, and what streams pay."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.phase import Phase, Role
from contracts.replica_io import LeaseGranted, LeaseRevoked
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.policies import policy

Lab = Any
SLACK = Slo(ttft_s=4.0, tpot_s=0.25)
ALTERNATING = ["min", "quantile(0.5)", "mean", "max", "ecoserve_paper", "ecoserve_artifact", "fixed_interval(0.5)"]
MIXED = ["deadline", "sarathi(128)", "prefill_priority"]


def streaming(replica_lab: Lab, rule: str, *, steps: int = 20, slo: Slo = SLACK, **changes: Any) -> Lab:
    """A lab under a rule with one stream that has banked slack for so many decode steps (about 0.24 s each)."""
    config = ReplicaCoreConfig(admission=rule, **changes)
    role = policy(rule).role
    lab = replica_lab(role, config=config, num_blocks=400, block_size=16)
    lab.arrive("stream", 8, 900, slo=slo)
    for _ in range(steps + 1):
        lab.step()
    return lab


def phase_of(lab: Lab) -> Phase:
    return Phase(lab.in_flight.phase)


@pytest.mark.parametrize("rule", ALTERNATING)
@pytest.mark.parametrize("chunked", [True, False])
def test_sch_4_no_rule_of_alternating_replicas_exceeds_the_gap(replica_lab: Lab, rule: str, chunked: bool) -> None:
    lab = streaming(replica_lab, rule, max_chunk=64, min_chunk=16, max_gap_s=0.5, window_chunking=chunked)
    end, count = lab.now + 12.0, 0
    while lab.now < end:
        if not lab.core.state.waiting:
            count += 1
            lab.arrive(f"p{count}", 8 * 64, 1, slo=SLACK)
        lab.send(LeaseGranted(2.0))
        lab.step()
    assert max(lab.got["stream"].gaps_s) <= 0.5 + 1e-6
    assert sum(record.finish is not None for record in lab.got.values()) > 8  # and prompts are served


@pytest.mark.parametrize("rule", ALTERNATING)
@pytest.mark.parametrize("chunked", [True, False])
def test_sch_5_one_long_prompt_under_every_rule(replica_lab: Lab, rule: str, chunked: bool) -> None:
    lab = streaming(replica_lab, rule, steps=4, max_chunk=64, min_chunk=16, max_gap_s=0.4, window_chunking=chunked)
    lab.send(LeaseGranted(100.0))
    lab.arrive("prompt", 1000, 2)
    lab.finish()
    assert max(lab.got["stream"].gaps_s) <= 0.4 + 1e-6


@pytest.mark.parametrize("rule", MIXED)
def test_sch_5_on_a_mixed_replica(replica_lab: Lab, rule: str) -> None:
    """`prefill_priority` keeps to `max_gap_s` where it is set; as published it is not."""
    lab = streaming(replica_lab, rule, steps=4, max_chunk=64, min_chunk=16, max_gap_s=0.4)
    lab.arrive("prompt", 1000, 2)
    lab.finish()
    assert max(lab.got["stream"].gaps_s) <= 0.5
    published = replica_lab(
        Role.MIXED, config=policy("prefill_priority").replica_config(), num_blocks=400, block_size=16
    )
    published.arrive("stream", 8, 50, slo=SLACK)
    published.step()
    for index in range(4):
        published.arrive(f"p{index}", 1000, 2)
    published.finish()
    assert max(published.got["stream"].gaps_s) > 4.0  # its known fault


def test_prefill_priority_keeps_phases_apart(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, "prefill_priority")
    lab.arrive("p", 64, 2)
    lab.step()
    assert lab.in_flight.phase is Phase.PREFILL
    lab.finish()
    assert not any(batch.phase is Phase.MIXED for _, batch in lab.batches)


def cut_in(lab: Lab, request_id: str) -> int:
    """Decode steps between the first and the last chunk of a prompt."""
    prompt = lab.requests[request_id].prompt_token_ids
    at = [
        number
        for number, (_, batch) in enumerate(lab.batches)
        for chunk in batch.chunks
        if chunk.sequence_id == request_id and chunk.start < len(prompt)
    ]
    return sum(batch.phase is Phase.DECODE for _, batch in lab.batches[at[0] : at[-1]])


def test_a_window_is_cut_where_slack_ends_and_goes_on_under_the_same_lease(replica_lab: Lab) -> None:
    """Slack for about 0.5 s, a prompt of 0.7 s: cut at a chunk boundary, and the stream misses nothing."""
    lab = streaming(replica_lab, "min", steps=2, max_chunk=128, max_gap_s=60.0)
    lab.send(LeaseGranted(100.0))
    lab.arrive("prompt", 1000, 2)
    first = lab.now
    lab.finish()
    assert cut_in(lab, "prompt") >= 1
    assert lab.core.state.counters.window_cuts >= 1
    assert lab.core.view(lab.now, "r", "1").window_cuts == lab.core.state.counters.window_cuts
    assert lab.core.state.counters.overdraft_s == 0.0
    assert lab.got["prompt"].token_times[0] - first < 2.0


def test_without_cuts_a_prompt_waits_until_there_is_enough_for_all_of_it(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, "min", steps=2, max_chunk=128, max_gap_s=60.0, window_chunking=False)
    lab.send(LeaseGranted(100.0))
    lab.arrive("prompt", 1000, 2)
    lab.step()
    assert phase_of(lab) is Phase.DECODE  # it could have begun
    while phase_of(lab) is Phase.DECODE:
        lab.step()
    lab.send(LeaseRevoked())  # what is begun is finished
    lab.finish()
    assert cut_in(lab, "prompt") == 0
    assert lab.core.state.counters.window_cuts == 0
    assert lab.core.state.counters.overdraft_s == 0.0


def test_what_a_greedy_rule_takes_beyond_slack_is_reported(replica_lab: Lab) -> None:
    """EcoServe's replica prefills whatever it was sent: admission was the scheduler's part."""
    tight = Slo(ttft_s=4.0, tpot_s=0.02)
    reported = {}
    for rule in ("ecoserve_paper", "min"):
        lab = streaming(replica_lab, rule, slo=tight, max_gap_s=60.0, overdue_after=100.0, window_chunking=False)
        lab.send(LeaseGranted(100.0))
        lab.arrive("prompt", 600, 2)
        lab.finish()
        reported[rule] = lab.core.state.counters.overdraft_s
    assert reported["min"] == 0.0
    assert 0.3 < reported["ecoserve_paper"] < 0.7


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    chunked=st.booleans(),
    arrivals=st.lists(
        st.tuples(st.integers(0, 12), st.integers(1, 300), st.integers(1, 30), st.sampled_from([0.02, 0.05, 0.25])),
        min_size=2,
        max_size=8,
    ),
)
def test_under_min_no_prefill_makes_a_stream_miss_whether_windows_are_cut_or_not(
    replica_lab: Lab, chunked: bool, arrivals: list[Any]
) -> None:
    """Exact predictions. From the first prefill step of a window on, the next decode ends before every deadline that
    was running then: streams lose nothing that they would have kept."""
    config = ReplicaCoreConfig(overdue_after=1e6, max_gap_s=5.0, min_chunk=16, window_chunking=chunked)
    lab = replica_lab(num_blocks=256, block_size=16, config=config)
    promised: list[float] = []

    def advance() -> bool:
        batch = lab.in_flight
        if batch is not None and batch.phase is Phase.PREFILL:
            promised.extend(s.deadline for s in lab.core.state.decoding.values() if s.first_decode_at is not None)
        if lab.step() is None:
            return False
        if batch.phase is Phase.DECODE:
            assert all(lab.now <= deadline + 1e-6 for deadline in promised)
            promised.clear()
        return True

    for number, (steps, prompt, output, tpot_s) in enumerate(arrivals):
        for _ in range(steps):
            advance()
        lab.send(LeaseGranted(1000.0))
        lab.arrive(f"r{number}", prompt, output, slo=Slo(tpot_s=tpot_s))
    while advance():
        pass
    lab.finish()
    assert lab.core.state.counters.overdraft_s == 0.0
    if not chunked:
        assert lab.core.state.counters.window_cuts == 0


def test_crafted_pair_mean_pays_with_the_tight_stream_and_min_does_not(replica_lab: Lab) -> None:
    """Slacks {0, 2t} and a prompt of t: the mean is t, so Algorithm 1 lets it in."""
    late = {}
    for rule in ("min", "mean", "ecoserve_paper"):
        config = ReplicaCoreConfig(admission=rule, max_gap_s=10.0, overdue_after=100.0, max_chunk=256)
        lab = replica_lab(config=config)
        lab.arrive("tight", 8, 80, slo=Slo(tpot_s=0.0125))
        lab.step()
        lab.arrive("rich", 8, 80, slo=Slo(tpot_s=1.0))
        lab.send(LeaseGranted(100.0))
        while len(lab.core.state.decoding) < 2 or lab.core.state.sequences["rich"].tokens_sent < 3:
            lab.step()
        lab.arrive("prompt", 200, 2, slo=Slo(ttft_s=3.0))
        lab.finish()
        late[rule] = max(lab.got["tight"].gaps_s) > 0.2
    assert late == {"min": False, "mean": True, "ecoserve_paper": True}
