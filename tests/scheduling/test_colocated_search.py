"""The quick ways to the best mixed replica find what trying everything finds."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.phase import Role
from contracts.request import Slo
from contracts.views import StepCost
from scheduling.config import ClusterCoreConfig
from scheduling.plan_colocated import colocated_candidate, plan_colocated
from scheduling.plan_inputs import Ask, Candidate, Load
from scheduling.plan_predict import largest_chunk, prompt_prefill_s
from scheduling.plan_room import place_objection, room_objection, slot_objection
from scheduling.step_cost import predict_prefill_s

CONFIG = ClusterCoreConfig()
TIGHT = Slo(ttft_s=1.0, tpot_s=0.06)
COSTS = st.builds(
    StepCost,
    a0=st.floats(0.0, 0.03),
    a1=st.floats(0.0, 3e-4),
    b0=st.floats(0.0, 1e-7),
    b1=st.floats(0.0, 1e-7),
    b2=st.floats(0.0, 1e-7),
    b3=st.floats(0.0, 1e-3),
    margin_s=st.floats(0.0, 0.01),
)


@st.composite
def _loads(draw: st.DrawFn) -> list[Load]:
    return [
        Load(
            replica_id=f"r{number}",
            role=Role.MIXED,
            cost=draw(COSTS),
            backlog_s=(backlog_s := draw(st.sampled_from([0.0, 0.1, 0.7]))),
            late_backlog_s=draw(st.sampled_from([0.0, 0.5])) * backlog_s,
            running=(running := draw(st.sampled_from([0, 0, 1, 5, 60]))),
            waiting=draw(st.sampled_from([0, 0, 1, 3])),
            decode_step_s=draw(st.floats(0.001, 0.06)) if running else 0.0,
            slack_s=None,
            tightest_slack_s=draw(st.floats(-0.5, 2.0)) if running else None,
            free_blocks=(free := draw(st.integers(0, 200))),
            spare_blocks=max(0, free - 2 * running),
            num_blocks=400,
            block_size=16,
            max_running=62,
            max_waiting=4,
            window_due_at=None,
            forced_at=0.0,
            closed=draw(st.sampled_from([None, None, None, "draining"])),
            viewed_at=0.0,
            incarnation="i",
            waiting_tokens=0,
            sending=0,
            kv_bytes_per_token=1,
            num_layers=1,
            joins=draw(st.booleans()),
            rides=running > 0,
        )
        for number in range(draw(st.integers(1, 8)))
    ]


def _tried_all(ask: Ask, loads: list[Load]) -> Candidate | None:
    """As `plan_colocated` says, one candidate for each replica."""
    able = [load for load in loads if (room_objection(ask, load) or slot_objection(ask, load)) is None]
    found = [colocated_candidate(ask, load, CONFIG) for load in able]
    meeting = [candidate for candidate in found if candidate.meets]
    if meeting:
        return min(meeting, key=lambda c: c.cost_s + (c.ttft_s + c.tpot_s * ask.reserve_tokens))
    return min((c for c in found if c.load.waiting == 0), key=lambda c: c.ttft_s, default=None)


@settings(max_examples=60, deadline=None)
@given(
    loads=_loads(),
    prompt=st.integers(1, 4000),
    waited_s=st.sampled_from([0.0, 0.4]),
    cached=st.dictionaries(st.sampled_from(["r0", "r1", "r2"]), st.integers(1, 3000), max_size=2),
)
def test_the_best_mixed_replica_is_found(
    loads: list[Load], prompt: int, waited_s: float, cached: dict[str, int]
) -> None:
    held = {name: min(tokens, prompt - 1) for name, tokens in cached.items()}
    ask = Ask(prompt_tokens=prompt, num_sequences=1, reserve_tokens=40, slo=TIGHT, waited_s=waited_s, cached=held)
    found, best = plan_colocated(ask, loads, CONFIG), _tried_all(ask, loads)
    if best is None:
        assert isinstance(found, str)
    else:
        assert found == best


@settings(max_examples=60, deadline=None)
@given(loads=_loads(), prompt=st.integers(1, 4000))
def test_a_quick_look_at_room_says_what_the_long_one_says(loads: list[Load], prompt: int) -> None:
    ask = Ask(prompt_tokens=prompt, num_sequences=1, reserve_tokens=40, slo=Slo(), waited_s=0.0)
    for load in loads:
        assert place_objection(ask, load) == (room_objection(ask, load) or slot_objection(ask, load))


@settings(max_examples=60, deadline=None)
@given(loads=_loads(), step_s=st.floats(0.0, 0.2), most=st.integers(1, 600))
def test_no_chunk_is_larger_and_lasts_no_longer(loads: list[Load], step_s: float, most: int) -> None:
    load = loads[0]
    lasts = [load.decode_step_s + n * load.cost.a1 + n * n * load.cost.b1 for n in range(most + 1)]
    fitting = [chunk for chunk in range(1, most + 1) if lasts[chunk] <= step_s]
    assert largest_chunk(load, step_s, most) == max(fitting, default=0)


@pytest.mark.parametrize("cost", [(0.0, 1e-18), (1e-18, 0.0), (0.0, 0.0)])
def test_a_step_without_time_to_spare_takes_no_chunk_that_lasts_longer(cost: tuple[float, float]) -> None:
    free = StepCost(a0=0.0, a1=cost[0], b0=0.0, b1=cost[1], b2=0.0, b3=0.0)
    load = msgspec.structs.replace(_plain(), cost=free)
    chunk = largest_chunk(load, load.decode_step_s, 512)
    assert load.decode_step_s + chunk * free.a1 + chunk * chunk * free.b1 <= load.decode_step_s


@given(cost=COSTS, prompt=st.integers(1, 5000), chunk=st.integers(1, 700), cached=st.integers(0, 6000))
def test_the_sums_of_a_prompt_are_those_of_its_chunks(cost: StepCost, prompt: int, chunk: int, cached: int) -> None:
    looped = predict_prefill_s(cost, past=cached, tokens=max(0, prompt - cached), chunk=chunk)
    assert prompt_prefill_s(cost, prompt, chunk, cached) == pytest.approx(looped)


def _plain() -> Load:
    cost = StepCost(a0=0.01, a1=1e-4, b0=0.0, b1=0.0, b2=0.0, b3=0.0)
    return Load(
        replica_id="r",
        role=Role.MIXED,
        cost=cost,
        backlog_s=0.0,
        running=1,
        waiting=0,
        decode_step_s=0.02,
        slack_s=None,
        tightest_slack_s=0.0,
        free_blocks=9,
        spare_blocks=9,
        num_blocks=9,
        block_size=16,
        max_running=9,
        max_waiting=9,
        window_due_at=None,
        forced_at=0.0,
        closed=None,
        viewed_at=0.0,
        incarnation="i",
        waiting_tokens=0,
        sending=0,
        kv_bytes_per_token=1,
        num_layers=1,
    )
