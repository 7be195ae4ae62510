"""Slack and its rules, as values and inside an alternating replica."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.phase import Phase, Role
from contracts.replica_io import LeaseGranted, LeaseRevoked
from contracts.request import Slo
from scheduling.admission_rules import parse_rule
from scheduling.config import ReplicaCoreConfig
from scheduling.slack import aggregate, lower_quantile

Lab = Any


def test_rules_on_known_numbers() -> None:
    ordered = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 55.0]
    rules = ("min", "quantile(0.25)", "mean", "max", "ecoserve_paper", "ecoserve_artifact")
    values = [aggregate(ordered, parse_rule(rule).level) for rule in rules]
    assert values == [0.0, 2.0, pytest.approx(100 / 11), 55.0, pytest.approx(100 / 11), 55.0]


@given(st.lists(st.floats(-10, 10), min_size=1, max_size=20), st.floats(0, 1))
def test_a_quantile_is_never_more_generous_than_its_level(values: list[float], level: float) -> None:
    ordered = sorted(values)
    found = lower_quantile(ordered, level)
    assert found in ordered
    assert sum(value < found for value in ordered) <= level * (len(ordered) - 1)
    assert aggregate(ordered, 0.0) <= aggregate(ordered, level) <= ordered[-1]


def latest(lab: Lab, request_id: str) -> float:
    """The most by which a token came after its deadline, in seconds, by the clock of the first decode step."""
    times: list[float] = lab.got[request_id].token_times
    first_decode: float = next(
        at for at, batch in lab.batches if any(c.sequence_id == request_id and c.start for c in batch.chunks)
    )
    tpot_s: float = lab.requests[request_id].slo.tpot_s
    return max(at - (first_decode + number * tpot_s) for number, at in enumerate(times) if number)


def crafted_pair(replica_lab: Lab, rule: str) -> Lab:
    """Two streams, one with slack about 0 and one with 2t; then a prompt whose prefill takes a little less than t."""
    config = ReplicaCoreConfig(admission=rule, max_gap_s=10.0, overdue_after=100.0, max_chunk=256)
    lab = replica_lab(config=config)
    lab.arrive("tight", 8, 80, slo=Slo(tpot_s=0.0125))  # a decode step of two streams takes 13 ms
    lab.step()
    lab.arrive("rich", 8, 80, slo=Slo(tpot_s=1.0))
    lab.send(LeaseGranted(100.0))
    while len(lab.core.state.decoding) < 2 or lab.core.state.sequences["rich"].tokens_sent < 3:
        lab.step()
    lab.arrive("prompt", 200, 2, slo=Slo(ttft_s=3.0))
    return lab


def test_mean_lets_the_crafted_pair_miss_and_min_does_not(replica_lab: Lab) -> None:
    """EcoServe's Algorithm 1 averages: a stream without slack pays for one with much."""
    mean = crafted_pair(replica_lab, "mean")
    mean.finish()
    careful = crafted_pair(replica_lab, "min")
    careful.finish()
    assert latest(mean, "tight") > 0.15
    assert latest(careful, "tight") < 0.05  # three streams decode slower than its target
    assert max(mean.got["tight"].gaps_s) > 0.2
    assert max(careful.got["tight"].gaps_s) < 0.2


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    role=st.sampled_from([Role.ALTERNATING, Role.MIXED]),
    arrivals=st.lists(
        st.tuples(
            st.integers(0, 12),  # steps before it
            st.integers(1, 300),  # prompt
            st.integers(1, 30),  # output
            st.sampled_from([0.02, 0.05, 0.25]),  # TPOT
            st.booleans(),  # lease
        ),
        max_size=10,
    ),
)
def test_no_prefill_makes_a_stream_miss_when_predictions_are_exact(
    replica_lab: Lab, role: Role, arrivals: list[Any]
) -> None:
    """From the start of any step with prefill, the next decode ends before every deadline then running."""
    config = ReplicaCoreConfig(overdue_after=1e6, max_gap_s=5.0, min_chunk=16)
    lab = replica_lab(role, num_blocks=256, block_size=16, config=config)
    promised: list[float] = []

    def advance() -> bool:
        batch = lab.in_flight
        if batch is not None and batch.phase is not Phase.DECODE:
            promised.extend(s.deadline for s in lab.core.state.decoding.values() if s.first_decode_at is not None)
        if lab.step() is None:
            return False
        if batch.phase is not Phase.PREFILL:
            assert all(lab.now <= deadline + 1e-6 for deadline in promised)
            promised.clear()
        return True

    for number, (steps, prompt, output, tpot_s, lease) in enumerate(arrivals):
        for _ in range(steps):
            advance()
        lab.send(LeaseGranted(1.0) if lease else LeaseRevoked())
        lab.arrive(f"r{number}", prompt, output, slo=Slo(tpot_s=tpot_s))
    while advance():
        pass
    lab.finish()
    assert lab.core.state.counters.overdraft_s == 0.0


def test_every_stream_that_joins_counts_in_the_decode_step_that_follows(replica_lab: Lab) -> None:
    """Twenty prompts of three tokens cost little to prefill, but make the next decode step three times as long."""
    config = ReplicaCoreConfig(max_gap_s=5.0, overdue_after=100.0, min_chunk=1)
    lab = replica_lab(config=config)
    lab.arrive("stream", 8, 60, slo=Slo(tpot_s=0.06))
    lab.step()
    lab.send(LeaseGranted(100.0))
    for index in range(20):
        lab.arrive(f"p{index}", 3, 2, slo=Slo(ttft_s=50.0, tpot_s=1.0))
    lab.finish()
    assert latest(lab, "stream") <= 0.0
    assert max(len(batch.chunks) for _, batch in lab.batches if batch.phase is Phase.PREFILL) > 5
