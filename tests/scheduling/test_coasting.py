"""Many steps in one go leave the same state as one after the other; links say until when they are quiet."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.batch import SampledToken, StepResult
from contracts.kv import KVLayout
from contracts.phase import Role
from contracts.replica_io import Emit, LeaseGranted, LinkMeasured, LinkUp, RequestArrived, StepDone
from contracts.request import Request, SamplingParams
from contracts.views import StepCost
from scheduling.coasting import coast, coasts, go_on, steps_ahead
from scheduling.config import ReplicaCoreConfig
from scheduling.invariants import check_invariants
from scheduling.link_probing import LinkTable
from scheduling.replica_core import ReplicaCore
from scheduling.sequence import Sequence

LAYOUT = KVLayout(num_layers=1, num_kv_heads=1, head_dim=8, block_size=16, dtype="float32")
COST = StepCost(a0=0.01, a1=0.0001, b0=0.0, b1=0.0, b2=1e-6, b3=0.0001)
TOKEN = 7


def decoding(role: Role, prompts: list[int], *, num_blocks: int, caching: bool, max_tokens: int = 200) -> ReplicaCore:
    """A core in which all these prompts are prefilled, with a decode step of them in flight."""
    config = ReplicaCoreConfig(prefix_cache=caching)
    core = ReplicaCore(config, role, LAYOUT, num_blocks, 8192, (2,), COST)
    core.handle(LeaseGranted(100.0), 0.0)
    for index, length in enumerate(prompts):
        sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
        tokens = tuple(range(index * 1000, index * 1000 + length))
        core.handle(RequestArrived(Request(request_id=f"r{index}", prompt_token_ids=tokens, sampling=sampling)), 0.0)
    for number in range(100):
        if coasts(core.state) and len(core.state.decoding) == len(prompts):
            return core
        step(core, 0.01, 0.01 * (number + 1))
    raise AssertionError("the prompts were never all prefilled")


def step(core: ReplicaCore, duration_s: float, now: float) -> None:
    """The step in flight ends, every stream of it goes on."""
    flying = core.state.in_flight
    assert flying is not None
    sampled = tuple(SampledToken(chunk.sequence_id, TOKEN) for chunk in flying.batch.chunks if chunk.samples)
    core.handle(StepDone(StepResult(step_index=flying.batch.step_index, sampled=sampled), duration_s), now)


def seen(core: ReplicaCore) -> object:
    """All that the state says, without the objects' identities."""
    state = core.state
    sequences = [
        (s.request_id, s.tokens, s.num_computed, s.table, s.last_token, s.deadline, s.tokens_sent, s.hashes)
        for s in (*state.sequences.values(),)
    ]
    flying = state.in_flight
    assert flying is not None
    return (
        *(sequences, flying.batch, flying.shape, flying.started_at, [s.request_id for s in flying.sequences]),
        *(state.predictor.cost, state.predictor.mape, state.predictor.relative_margin, state.counters),
        *(state.ledger.num_free, state.ledger.take_journal(), state.clock, state.next_step_index),
        core.view(flying.started_at + 0.001, "r", "1"),
    )


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 60), min_size=1, max_size=6),
    role=st.sampled_from([Role.MIXED, Role.ALTERNATING]),
    caching=st.booleans(),
    num_steps=st.integers(1, 40),
    seed=st.integers(0, 9),
)
def test_as_many_steps_one_after_the_other(
    prompts: list[int], role: Role, caching: bool, num_steps: int, seed: int
) -> None:
    at_once, one_by_one = (decoding(role, prompts, num_blocks=256, caching=caching) for _ in range(2))
    tokens = [TOKEN] * len(prompts)
    steps = min(num_steps, steps_ahead(at_once.state, tokens))
    durations = [Random(seed + number).uniform(0.005, 0.05) for number in range(steps)]
    now, ended_at = 6.0, []
    for duration_s in durations:
        now += duration_s
        ended_at.append(now)
        step(one_by_one, duration_s, now)
    if steps:
        coast(at_once.state, tokens, durations, ended_at)
        assert seen(at_once) == seen(one_by_one)
        check_invariants(at_once)


@settings(max_examples=20, deadline=None)
@given(
    prompts=st.lists(st.integers(1, 60), min_size=2, max_size=5),
    role=st.sampled_from([Role.MIXED, Role.ALTERNATING]),
    ends=st.sets(st.integers(0, 4)),
    joins=st.booleans(),
)
def test_streams_that_go_on_are_told_of_apart_from_the_rest_of_their_step(
    prompts: list[int], role: Role, ends: set[int], joins: bool
) -> None:
    """One core hears of the streams that go on in one word, the other of each; some end, a prompt may join them."""
    apart, together = (decoding(role, prompts, num_blocks=256, caching=False) for _ in range(2))
    last = {f"r{index}" for index in ends}
    gone_on: list[list[str]] = []
    for core in (apart, together):
        if joins:
            sampling = SamplingParams(temperature=0.0, max_tokens=9)
            core.handle(RequestArrived(Request(request_id="new", prompt_token_ids=(1, 2), sampling=sampling)), 6.0)
            step(core, 0.02, 6.02)
    outputs = []
    for core in (apart, together):
        flying = core.state.in_flight
        assert flying is not None
        if core is apart:
            ends_at = {s.request_id: len(s.tokens) + (s.request_id not in last) for s in core.state.decoding.values()}
            streams = go_on(core.state, ends_at, TOKEN)
            assert set(streams) == set(core.state.decoding) - last
            gone_on.append(streams)
        sampled = [
            SampledToken(chunk.sequence_id, 2 if chunk.sequence_id in last else TOKEN)
            for chunk in flying.batch.chunks
            if chunk.samples
        ]
        result = StepResult(step_index=flying.batch.step_index, sampled=tuple(sampled))
        actions = core.handle(StepDone(result, 0.02), 6.1)
        check_invariants(core)
        told = [output for action in actions if isinstance(action, Emit) for output in action.outputs]
        outputs.append([output for output in told if output.request_id not in gone_on[0]])
    assert outputs[0] == outputs[1]
    if apart.state.in_flight is not None:
        assert seen(apart) == seen(together)


def test_none_go_on_apart_beside_a_cache_or_to_what_ends_their_output() -> None:
    cached = decoding(Role.MIXED, [20, 30], num_blocks=64, caching=True)
    assert go_on(cached.state, dict.fromkeys(cached.state.decoding, 10**6), TOKEN) == []
    core = decoding(Role.MIXED, [20, 30], num_blocks=64, caching=False)
    assert go_on(core.state, dict.fromkeys(core.state.decoding, 10**6), 2) == []
    assert go_on(core.state, {}, TOKEN) == []
    while all(s.num_output < s.max_output - 1 for s in core.state.decoding.values()):
        step(core, 0.01, 6.0)
    not_at_their_end = [s.request_id for s in core.state.decoding.values() if s.num_output < s.max_output - 1]
    assert len(not_at_their_end) < 2
    assert go_on(core.state, dict.fromkeys(core.state.decoding, 10**6), TOKEN) == not_at_their_end


def test_not_beyond_the_output_the_blocks_or_a_token_that_ends_a_stream() -> None:
    core = decoding(Role.MIXED, [20, 30], num_blocks=64, caching=False, max_tokens=24)
    left = min(s.max_output - s.num_output for s in core.state.decoding.values())
    assert steps_ahead(core.state, [TOKEN, TOKEN]) == left - 1
    assert steps_ahead(core.state, [TOKEN, 2]) == 0
    tight = decoding(Role.MIXED, [40, 40], num_blocks=64, caching=False)
    tight.state.ledger.allocate(tight.state.ledger.num_free - 3)
    assert steps_ahead(tight.state, [TOKEN, TOKEN]) == LAYOUT.block_size


def test_a_waiting_prompt_a_lone_prefill_and_an_ending_stream_are_decisions() -> None:
    core = decoding(Role.ALTERNATING, [20], num_blocks=64, caching=False)
    assert coasts(core.state)
    request = Request(request_id="new", prompt_token_ids=(1, 2, 3), sampling=SamplingParams(max_tokens=4))
    core.handle(RequestArrived(request), 6.0)
    assert not coasts(core.state)
    fresh = ReplicaCore(ReplicaCoreConfig(), Role.MIXED, LAYOUT, 64, 8192, (2,), COST)
    assert not coasts(fresh.state)
    fresh.handle(RequestArrived(request), 0.0)
    assert not coasts(fresh.state)


def test_the_deadline_of_each_stream_moves_with_every_token() -> None:
    core = decoding(Role.MIXED, [20, 30], num_blocks=64, caching=False)
    before: list[Sequence] = list(core.state.decoding.values())
    due = [s.deadline for s in before]
    coast(core.state, [TOKEN, TOKEN], [0.02] * 3, [6.0, 6.02, 6.04])
    assert [s.deadline for s in before] == pytest.approx([d + 3 * s.tpot_s for d, s in zip(due, before, strict=True)])


@given(
    heard=st.lists(
        st.tuples(st.sampled_from("abc"), st.floats(0.1, 20.0), st.sampled_from(["up", "measured", "probe", "wild"])),
        max_size=12,
    ),
    waits=st.lists(st.floats(0.01, 30.0), min_size=1, max_size=20),
)
def test_no_probe_is_due_before_links_said_that_they_are_quiet(
    heard: list[tuple[str, float, str]], waits: list[float]
) -> None:
    config, links, now = ReplicaCoreConfig(), LinkTable(), 0.0
    for peer, gap_s, what in heard:
        now += gap_s
        if what == "up":
            links.up(LinkUp(peer, "1", "t", "d", 0.001), config)
        else:
            num_bytes = 50_000_000 if what == "wild" else 5_000_000
            links.measured(LinkMeasured(peer, num_bytes, 0.1, probe=what == "probe"), now)
    for wait_s in waits:
        quiet_until = links.quiet_until(config, now)
        now += wait_s
        if links.next_probe(config, now) is not None:
            assert now >= quiet_until
