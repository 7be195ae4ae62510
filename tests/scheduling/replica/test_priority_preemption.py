"""Priorities on one replica: who gives way to whom when slots or blocks are taken, and that nobody does so for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.handoff import DecodeLeg
from contracts.phase import Role
from contracts.replica_io import LeaseGranted, LeaseRevoked, ReserveKV
from contracts.request import FinishReason
from scheduling.config import ReplicaCoreConfig

Lab = Any
SLOTS = 4
FEW = ReplicaCoreConfig(max_running=SLOTS, prefix_cache=False)
ROLES = [Role.ALTERNATING, Role.MIXED, Role.PREFILL, Role.DECODE]


def preempted(lab: Lab) -> dict[str, int]:
    return {name: record.usage.preemptions for name, record in lab.got.items() if record.usage.preemptions}


def taken(replica_lab: Lab, role: Role, by: str, priority: int = 0, **settings: Any) -> Lab:
    """A replica whose slots, or blocks, are all taken by long answers of one priority that were begun."""
    blocks = 2000 if by == "slots" else 4 * SLOTS
    config = FEW if by == "slots" else ReplicaCoreConfig(prefix_cache=False, **settings)
    lab = replica_lab(role, num_blocks=blocks, block_size=8, config=config)
    tokens = 200 if by == "slots" else 16
    for index in range(SLOTS):
        lab.arrive(f"low{index}", 16, tokens, priority=priority)
    lab.send(LeaseGranted(duration_s=100.0))
    for _ in range(60):
        if len(lab.core.state.decoding) == SLOTS:
            break
        lab.step()
    assert len(lab.core.state.decoding) == SLOTS
    lab.send(LeaseRevoked())
    return lab


@pytest.mark.parametrize("by", ["slots", "blocks"])
@pytest.mark.parametrize("role", ROLES)
def test_sch_1_higher_priority_does_not_wait_for_lower_ones_to_end(replica_lab: Lab, role: Role, by: str) -> None:
    """All roles, without any lease: it runs at once, one stream gives way and still ends with the right tokens."""
    lab = taken(replica_lab, role, by)
    began = lab.now
    lab.arrive("high", 8, 8, priority=1)
    lab.finish()  # compares every token with an undisturbed run
    took_s = lab.got["high"].token_times[-1] - began
    lows = [lab.got[f"low{index}"].token_times[-1] - began for index in range(SLOTS)]
    assert took_s < min(lows)
    if by == "slots":
        assert took_s < 0.25 * max(lows)
    assert len(preempted(lab)) == 1
    assert "high" not in preempted(lab)
    assert all(record.finish is FinishReason.LENGTH for record in lab.got.values())


@pytest.mark.parametrize("by", ["slots", "blocks"])
@pytest.mark.parametrize("priority", [0, -1])
def test_equal_and_lower_priorities_wait(replica_lab: Lab, by: str, priority: int) -> None:
    lab = taken(replica_lab, Role.MIXED, by, output_reserve_quantile=1.0)
    lab.arrive("later", 8, 8, priority=priority)
    lab.finish()
    assert preempted(lab) == {}


def test_the_lowest_priority_gives_way_first_and_then_the_most_slack(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=2000, config=FEW)
    for name, priority in (("a", 2), ("b", 1), ("c", 1), ("d", 3)):
        lab.arrive(name, 8, 300, priority=priority)
    for _ in range(5):
        lab.step()
    slack = {name: lab.core.state.decoding[name].deadline for name in "bc"}
    expected = max("bc", key=lambda name: (slack[name], lab.core.state.decoding[name].arrived_at, name))
    lab.arrive("high", 8, 4, priority=4)
    lab.finish()
    assert preempted(lab) == {min("bc") if slack["b"] == slack["c"] else expected: 1}


def test_nobody_is_preempted_for_what_would_not_be_enough(replica_lab: Lab) -> None:
    """A long prompt of the highest priority needs more than what lower ones hold: equals are in its way."""
    lab = replica_lab(Role.MIXED, num_blocks=20, block_size=8, config=ReplicaCoreConfig(prefix_cache=False))
    lab.arrive("equal", 80, 16, priority=1)
    lab.arrive("low", 16, 16)
    for _ in range(4):
        lab.step()
    lab.arrive("high", 120, 4, priority=1)
    for _ in range(4):
        lab.step()
    assert lab.core.state.counters.preemptions == 0
    lab.finish()


def test_sch_2_steady_high_priority_does_not_preempt_one_for_ever(replica_lab: Lab) -> None:
    """Low ones are preempted at most `max_preemptions` times each and then keep their place: none starves."""
    lab = replica_lab(Role.MIXED, num_blocks=400, config=FEW)
    for index in range(SLOTS):
        lab.arrive(f"low{index}", 8, 40)
    for index in range(60):
        lab.arrive(f"high{index}", 8, 12, priority=1)
        for _ in range(5):
            lab.step()
    ended = [name for name, record in lab.got.items() if name.startswith("low") and record.finish is not None]
    lab.finish()
    assert max(preempted(lab).values()) <= FEW.max_preemptions
    assert len(ended) >= 1, "while high ones kept coming no low one ended"


def test_a_decode_leg_of_higher_priority_gets_its_blocks(replica_lab: Lab) -> None:
    """The kind on the receiving side: the slots are taken, KV is asked for all the same."""
    lab = taken(replica_lab, Role.DECODE, "slots")
    leg = DecodeLeg(prefill_replica_id="p", expected_s=0.1, link_bytes_per_s=1e9)
    lab.arrive("high", 8, 4, priority=1, leg=leg)
    for _ in range(2):
        lab.step()
    assert any(isinstance(action, ReserveKV) for action in lab.actions)
    assert lab.core.state.counters.preemptions == 1


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    arrivals=st.lists(
        st.tuples(st.integers(1, 30), st.integers(1, 20), st.integers(-2, 2), st.integers(0, 4)),
        min_size=1,
        max_size=14,
    ),
    role=st.sampled_from(ROLES),
)
def test_random_priorities_end_right(replica_lab: Lab, arrivals: list[tuple[int, int, int, int]], role: Role) -> None:
    """Invariants after every event, right tokens, and the bound on preemptions, whatever comes when."""
    config = ReplicaCoreConfig(max_running=3, output_reserve_quantile=0.0, prefix_cache=False)
    lab = replica_lab(role, num_blocks=16, block_size=4, config=config)
    for index, (prompt, output, priority, steps) in enumerate(arrivals):
        lab.arrive(f"r{index}", prompt, output, priority=priority)
        for _ in range(steps):
            lab.step()
    lab.finish()
    assert max(preempted(lab).values(), default=0) <= config.max_preemptions
