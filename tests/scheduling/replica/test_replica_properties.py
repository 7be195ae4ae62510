"""Random lives of one replica: after each event `scheduling.invariants` hold, and nothing is left at the end."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from contracts.phase import Role
from contracts.replica_io import (
    ClientGone,
    DrainRequested,
    LeaseGranted,
    LeaseRevoked,
    ReplicaAction,
    ReplicaEvent,
    RoleAssigned,
    Woken,
)
from contracts.request import FinishReason, SamplingParams, Slo
from contracts.views import StepCost
from scheduling.chunk_config import ChunkConfig
from scheduling.config import ReplicaCoreConfig
from scheduling.replica_core import ReplicaCore

Lab = Any

RULES = [
    *("min", "quantile(0.3)", "mean", "max", "ecoserve_paper", "ecoserve_artifact", "fixed_interval(0.5)", "deadline"),
    *("sarathi(1)", "sarathi(8)", "sarathi(64)", "prefill_priority", "dcp_greedy", "dcp_predictive"),
]
configs = st.builds(
    ReplicaCoreConfig,
    max_running=st.sampled_from([1, 2, 5, 64]),
    max_waiting=st.sampled_from([2, 30]),
    max_waiting_tokens=st.sampled_from([40, 10_000]),
    admission=st.sampled_from(RULES),
    window_chunking=st.booleans(),
    min_chunk=st.sampled_from([1, 4]),
    max_chunk=st.sampled_from([4, 7, 32]),
    chunk_multiple=st.sampled_from([1, 4]),
    overdue_after=st.sampled_from([0.1, 1.0]),
    aged_after=st.sampled_from([0.5, 4.0]),
    max_gap_s=st.sampled_from([0.02, 0.1, 2.0]),
    prefix_cache=st.booleans(),
    output_reserve_quantile=st.sampled_from([0.0, 0.5, 1.0]),
    max_preemptions=st.sampled_from([0, 1, 3]),
    pipeline_depth=st.sampled_from([1, 1, 2, 3, 4]),
    micro_batches=st.sampled_from(["even", "kept", "delayed"]),
    chunks=st.sampled_from([ChunkConfig(), ChunkConfig(smallest=4, largest=32, grain=4, free_share=0.3)]),
)
arrivals = st.tuples(
    st.just("arrive"),
    st.integers(0, 40),  # prompt tokens
    st.integers(0, 3),  # family: prompts of one family share their beginning
    st.integers(1, 20),  # max_tokens
    st.sampled_from([None, 0]),  # prompt_logprobs
    st.integers(0, 2),  # priority
    st.sampled_from([0.05, 0.5, 4.0]),  # TTFT target
    st.sampled_from([0.001, 0.03, 0.3]),  # TPOT target
)
steps = st.tuples(st.just("step"), st.sampled_from([1.0, 1.0, 1.0, 0.0, 0.3, 20.0, -1.0, float("nan")]))
others = st.one_of(
    st.tuples(st.just("cancel"), st.integers(0, 30)),
    st.tuples(st.just("lease"), st.sampled_from([0.0, 0.05, 5.0])),
    st.tuples(st.sampled_from(["revoke", "woken", "fail step", "fail row"])),
    st.tuples(st.just("wait"), st.sampled_from([0.01, 1.0])),
    st.tuples(st.just("role"), st.sampled_from(list(Role))),
)
lives = st.lists(st.one_of(arrivals, steps, steps, others), max_size=60)


class Life:
    """Performs drawn operations on a lab."""

    def __init__(self, lab: Lab) -> None:
        self.lab = lab
        self.factor = 1.0
        base = lab.duration
        lab.duration = lambda batch: base(batch) * self.factor
        self.count = 0

    def perform(self, operation: tuple[Any, ...]) -> None:
        lab = self.lab
        match operation:
            case ("arrive", prompt, family, max_tokens, logprobs, priority, ttft_s, tpot_s):
                self.count += 1
                sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens, prompt_logprobs=logprobs)
                tokens = tuple(3 + (family * 17 + i * i) % 50 for i in range(prompt))
                slo = Slo(ttft_s=ttft_s, tpot_s=tpot_s)
                lab.arrive(f"r{self.count}", tokens, sampling=sampling, priority=priority, slo=slo)
            case ("step", factor):
                self.factor = factor
                lab.step()
                self.factor = 1.0
            case ("cancel", index):
                lab.send(ClientGone(f"r{index}"))
            case ("lease", duration):
                lab.send(LeaseGranted(duration))
            case ("revoke",):
                lab.send(LeaseRevoked())
            case ("woken",):
                lab.send(Woken())
            case ("wait", duration):
                lab.now += duration
            case ("role", role):
                lab.send(RoleAssigned(role))
            case ("fail step",):
                lab.engine.fail_on(lambda _: True)
                lab.step()
                lab.engine.fail_on(None)
            case ("fail row",):
                lab.engine.fail_rows_on(lambda chunk: hash(chunk.token_ids) % 2 == 0)
                lab.step()
                lab.engine.fail_rows_on(None)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    role=st.sampled_from(list(Role)),
    num_blocks=st.sampled_from([6, 16, 64]),
    block_size=st.sampled_from([1, 4]),
    config=configs,
    eager=st.booleans(),
    life=lives,
)
def test_any_life_ends_well(
    replica_lab: Lab,
    role: Role,
    num_blocks: int,
    block_size: int,
    config: ReplicaCoreConfig,
    eager: bool,
    life: list[Any],
) -> None:
    blocks = {"num_blocks": num_blocks, "block_size": block_size}
    lab = replica_lab(role, **blocks, max_context=96, config=config, eos_every=9, eager=eager)
    doings = Life(lab)
    for operation in life:
        doings.perform(operation)
    lab.send(DrainRequested())
    lab.finish()
    assert lab.drained
    finished = [r for r in lab.got.values() if r.finish in {FinishReason.STOP, FinishReason.LENGTH}]
    assert all(record.error is None and record.usage.output_tokens == len(record.tokens) for record in finished)
    for request_id, record in lab.got.items():
        sampling = lab.requests[request_id].sampling
        if record in finished and sampling.prompt_logprobs is not None:
            assert sorted(record.prompt_logprobs) == list(range(1, len(lab.requests[request_id].prompt_token_ids)))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(role=st.sampled_from(list(Role)), config=configs, life=lives)
def test_same_events_same_actions(
    replica_lab: Lab, lab_cost: StepCost, role: Role, config: ReplicaCoreConfig, life: list[Any]
) -> None:
    lab = replica_lab(role, num_blocks=16, max_context=96, config=config)
    heard: list[tuple[ReplicaEvent, float]] = []
    said: list[list[ReplicaAction]] = []
    handle = lab.core.handle

    def record(event: ReplicaEvent, now: float) -> list[ReplicaAction]:
        heard.append((event, now))
        said.append(handle(event, now))
        return said[-1]

    lab.core.handle = record
    doings = Life(lab)
    for operation in life:
        if operation[0] != "role":
            doings.perform(operation)
    lab.run()
    twin = ReplicaCore(config, role, lab.layout, 16, 96, lab.spec.eos_token_ids, lab_cost)
    assert [twin.handle(event, now) for event, now in heard] == said
