"""What a change of role may not do to the streams that are there: make them late (predictions are exact here)."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.phase import Phase, Role
from contracts.replica_io import LeaseGranted, RoleAssigned
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig

Lab = Any
PATIENT_S = 1000.0  # no prompt is overdue: overdraft is not what is looked at here
RULES = ["min", "mean", "ecoserve_paper", "ecoserve_artifact", "prefill_priority", "sarathi(64)", "deadline"]
PAIRS = list(itertools.permutations(Role, 2))

streams = st.tuples(
    st.just("stream"), st.integers(1, 60), st.integers(2, 60), st.sampled_from([0.06, 0.1, 0.3])
)  # prompt tokens, output tokens, TPOT target
prompts = st.tuples(st.just("stream"), st.integers(100, 400), st.integers(1, 3), st.sampled_from([0.3]))
lives = st.lists(
    st.one_of(
        streams,
        prompts,
        prompts,
        st.tuples(st.just("steps"), st.integers(1, 12)),
        st.tuples(st.just("role"), st.sampled_from(list(Role))),
        st.tuples(st.just("lease"), st.sampled_from([0.5, 5.0])),
    ),
    min_size=4,
    max_size=24,
)


class Watched:
    """A lab that checks after each step that no guarded stream lost time that it did not have."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.slack: dict[str, float] = {}
        self.promised: set[str] = set()

    def slacks(self) -> dict[str, float]:
        streams = self.lab.core.state.decoding.values()
        found = [s for s in streams if s.request_id in self.promised and s.first_decode_at is not None]
        return {s.request_id: s.deadline - self.lab.now for s in found}

    def step(self) -> bool:
        begun = self.lab.core.state.in_flight
        if self.lab.step() is None:
            return False
        slacks = self.slacks()
        for name, slack_s in slacks.items():
            before = self.slack.get(name)
            if before is not None:
                assert slack_s >= min(0.0, before) - 1e-6, f"{name}: {before} -> {slack_s} by {begun}"
        self.slack = slacks
        return True

    def assign(self, role: Role) -> None:
        """What is in flight was begun under the earlier role: streams are looked at from its end on."""
        if role is not self.lab.core.state.role:
            self.promised = set(self.lab.got)
        self.lab.send(RoleAssigned(role))
        self.slack = {}


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(role=st.sampled_from(list(Role)), rule=st.sampled_from(RULES), life=lives)
def test_no_stream_is_late_because_of_a_change(replica_lab: Lab, role: Role, rule: str, life: list[Any]) -> None:
    config = ReplicaCoreConfig(admission=rule, max_chunk=128, min_chunk=8, chunk_multiple=8, margin_quantile=0.0)
    lab = replica_lab(role, config=config, num_blocks=4096, block_size=4)
    watched = Watched(lab)
    for number, operation in enumerate([("stream", 8, 100, 0.06), ("steps", 3), *life]):
        match operation:
            case ("stream", prompt, output, tpot_s):
                lab.arrive(f"r{number}", prompt, output, slo=Slo(ttft_s=PATIENT_S, tpot_s=tpot_s))
            case ("steps", count):
                for _ in range(count):
                    watched.step()
            case ("role", after):
                watched.assign(after)
            case ("lease", duration_s):
                lab.send(LeaseGranted(duration_s))
    while watched.step():
        pass
    lab.finish()


@pytest.mark.parametrize(("before", "after"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_a_stream_keeps_its_pace_under_a_burst_of_prompts(replica_lab: Lab, before: Role, after: Role) -> None:
    """And the burst is computed meanwhile, in its slack: nothing waits for the stream to end."""
    lab = replica_lab(before, config=ReplicaCoreConfig(margin_quantile=0.0), num_blocks=2048)
    stream = lab.arrive("stream", 8, 150, slo=Slo(ttft_s=4.0, tpot_s=0.1))
    for _ in range(4):
        lab.step()
    began = lab.core.state.sequences["stream"].first_decode_at
    lab.send(LeaseGranted(100.0))
    lab.send(RoleAssigned(after))
    lab.send(LeaseGranted(100.0))
    for number in range(10):
        lab.arrive(f"p{number}", 100, 1, slo=Slo(ttft_s=PATIENT_S, tpot_s=1.0))
    assert lab.core.view(lab.now, "r", "i").guarded == 1
    lab.finish()
    assert began is not None
    late = [at - began - 0.1 * index for index, at in enumerate(stream.token_times) if index]
    assert max(late) <= 1e-6
    assert all(lab.got[f"p{number}"].token_times[0] < stream.token_times[-1] for number in range(10))


def test_what_came_after_the_change_is_not_guarded(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=400)
    lab.arrive("before", 8, 20)
    lab.arrive("waits", 8, 20)
    lab.send(RoleAssigned(Role.DECODE))
    lab.arrive("after", 8, 20)
    assert lab.core.view(lab.now, "r", "i").guarded == 2
    lab.send(RoleAssigned(Role.DECODE))
    assert lab.core.view(lab.now, "r", "i").guarded == 2
    lab.finish()
    assert lab.core.view(lab.now, "r", "i").guarded == 0


def test_how_late_a_prefill_replica_made_its_own_stream_is_not_made_up_for(replica_lab: Lab) -> None:
    """Else the prompts of the alternating replica that it becomes would wait until the stream has caught up."""
    lab = replica_lab(Role.PREFILL, num_blocks=4096)
    lab.arrive("stream", 8, 400, slo=Slo(ttft_s=4.0, tpot_s=0.05))
    for number in range(40):
        lab.arrive(f"p{number}", 200, 1)
    while lab.core.state.waiting:
        lab.step()
    stream = lab.core.state.sequences["stream"]
    assert stream.deadline < lab.now - 1.0
    lab.send(RoleAssigned(Role.ALTERNATING))
    assert stream.deadline >= lab.now
    lab.send(LeaseGranted(100.0))
    lab.arrive("new", 200, 1, slo=Slo(ttft_s=4.0, tpot_s=1.0))
    asked = lab.now
    while lab.got["new"].finish is None:
        lab.step()
    assert lab.now - asked < 4.0
    lab.finish()


def test_prompts_that_an_alternating_replica_brings_along_need_no_lease(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=400)
    lab.arrive("stream", 8, 400, slo=Slo(ttft_s=4.0, tpot_s=0.25))
    for _ in range(20):
        lab.step()
    lab.arrive("p", 100, 1, slo=Slo(ttft_s=PATIENT_S, tpot_s=1.0))
    lab.send(RoleAssigned(Role.ALTERNATING))
    asked = lab.now
    while lab.got["p"].finish is None:
        lab.step()
    assert lab.now - asked < 1.0
    assert Phase.PREFILL in {batch.phase for _, batch in lab.batches[20:]}
    lab.finish()
