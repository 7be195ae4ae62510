"""Stages of a pipeline: when batches get through, which bubbles count as what, and a whole run of a piped replica."""

from __future__ import annotations

from random import Random

import msgspec
import pytest

from contracts.batch import Batch, Chunk
from contracts.phase import Phase
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.step_shape import StepShape
from simulator.cost import Fitted, NoisySteps, believed_of, num_stages
from simulator.deployment import Deployment
from simulator.engine import SimulatedEngine
from simulator.lengths import Constant
from simulator.pipeline import Pipeline
from simulator.report import Report
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.scenarios import small

PROMPT, DECODE = True, False


def put_in(pipe: Pipeline, now: float, seconds: float, *, prompt: bool, hop_s: float = 0.0) -> float:
    return pipe.enter(now, (seconds,) * pipe.num_stages, hop_s, has_prefill=prompt)


def test_equal_batches_leave_no_gap_and_one_comes_out_each_stage_time() -> None:
    pipe = Pipeline(3)
    landings = [put_in(pipe, 0.0, 1.0, prompt=DECODE) for _ in range(3)]
    assert landings == [3.0, 4.0, 5.0]
    assert put_in(pipe, 3.0, 1.0, prompt=DECODE) == 6.0
    bubbles = pipe.bubbles
    assert (bubbles.p_p, bubbles.p_d, bubbles.d_d, bubbles.starved) == (0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("first", "second", "kind"),
    [(PROMPT, PROMPT, "p_p"), (PROMPT, DECODE, "p_d"), (DECODE, PROMPT, "p_d"), (DECODE, DECODE, "d_d")],
)
def test_a_longer_batch_behind_a_shorter_one_is_waited_for_by_the_second_stage(
    first: bool, second: bool, kind: str
) -> None:
    pipe = Pipeline(2)
    put_in(pipe, 0.0, 1.0, prompt=first)  # second stage: 1 to 2
    assert put_in(pipe, 0.0, 4.0, prompt=second) == 9.0  # first stage: 1 to 5, second: 5 to 9
    found = {name: getattr(pipe.bubbles, name) for name in ("p_p", "p_d", "d_d", "starved")}
    assert found.pop(kind) == 3.0
    assert set(found.values()) == {0.0}


def test_a_shorter_batch_waits_in_front_of_the_stage_and_makes_the_first_one_stand_still() -> None:
    pipe = Pipeline(2)
    put_in(pipe, 0.0, 4.0, prompt=PROMPT)  # 0 to 4, 4 to 8
    assert put_in(pipe, 0.0, 1.0, prompt=DECODE) == 9.0  # 4 to 5, waits, 8 to 9
    assert put_in(pipe, 8.0, 1.0, prompt=DECODE) == 10.0  # the first stage stood still from 5 to 8
    assert pipe.bubbles.d_d == 3.0


def test_activations_on_the_way_delay_the_next_stage() -> None:
    pipe = Pipeline(2)
    assert put_in(pipe, 0.0, 1.0, prompt=DECODE, hop_s=0.5) == 2.5


def test_too_few_batches_starve_stages_and_what_is_empty_is_not_counted() -> None:
    pipe = Pipeline(2)
    assert put_in(pipe, 0.0, 1.0, prompt=DECODE) == 2.0
    assert put_in(pipe, 2.0, 1.0, prompt=DECODE) == 4.0  # each stage stood still for 1 of 2
    assert pipe.bubbles.starved == 2.0
    assert put_in(pipe, 100.0, 1.0, prompt=DECODE) == 102.0  # from 4 to 100 there was nothing
    assert pipe.bubbles.starved == 4.0
    assert pipe.bubbles.d_d == 0.0


def piped(pp: int, *, rate: float = 3.0, for_s: float = 12.0, rule: str = "sarathi(512)") -> Scenario:
    place = Deployment(model="qwen2.5-14b", hardware="a100-40", tp=4 // pp, pp=pp)
    scenario = small(
        mixed=1,
        rate=rate,
        duration_s=for_s,
        prompt=Constant(tokens=700),
        output=Constant(tokens=40),
        slo=Slo(ttft_s=2.0, tpot_s=0.2),
        cost=place.cost,
        kv=place.kv,
        num_blocks=place.num_blocks,
        scheduling=ReplicaCoreConfig(max_running=256, max_chunk=2048, prefix_cache=False, admission=rule),
    )
    return msgspec.structs.replace(
        scenario, cluster=msgspec.structs.replace(scenario.cluster, layout="colocated", admission=rule)
    )


@pytest.mark.parametrize("rule", ["sarathi(512)", "deadline"])
def test_a_piped_replica_serves_everything_and_says_the_same_twice(rule: str) -> None:
    report = simulate(piped(4, rule=rule))
    assert report.finished == report.arrived > 20
    assert report.json() == simulate(piped(4, rule=rule)).json()
    replica = report.replicas[0]
    assert replica.stages == 4
    assert 0.0 < replica.busy <= 1.0
    bubbles = replica.bubbles_s
    # Four stages over the whole run: busy, standing still between batches, or with nothing to do at all.
    assert bubbles.unequal_s + bubbles.starved <= 4 * replica.alive_s * (1.0 - replica.busy) + 1e-6
    assert bubbles.unequal_s > 0.0


def test_the_more_stages_the_more_requests_a_second_where_collectives_are_slow() -> None:
    """The reason for pipelines over PCIe: no all-reduce (the paper's comparison with tensor parallelism)."""

    def output_rate(report: Report) -> float:
        return report.output_tokens_per_s

    whole, halves, quarters = (simulate(piped(pp, rate=80.0, for_s=4.0)) for pp in (1, 2, 4))
    assert output_rate(quarters) > output_rate(halves) > output_rate(whole)


def test_a_single_request_takes_the_sum_of_the_stages_and_their_hops_for_each_token() -> None:
    scenario = piped(4)
    one = msgspec.structs.replace(
        scenario, workload=msgspec.structs.replace(scenario.workload, num_requests=1), warmup_s=0.0
    )
    cost = one.fleet[0].cost
    shape = StepShape()
    shape.add_decodes(1, 720)
    noise_free = msgspec.structs.replace(one, fleet=(msgspec.structs.replace(one.fleet[0], noise=0.0),), latency_s=0.0)
    report = simulate(noise_free)
    assert report.itl_s.p50 == pytest.approx(cost.step_s(shape), rel=0.01)


def test_the_predictor_of_a_piped_core_starts_from_the_time_of_one_stage() -> None:
    cost = Deployment(model="qwen2.5-14b", hardware="a100-40", tp=1, pp=4).cost
    assert num_stages(cost) == 4
    shape = StepShape()
    shape.add_prefill(0, 512)
    believed = believed_of(cost)
    assert shape.predict_s(believed) == pytest.approx(max(cost.stage_times_s(shape)), rel=0.2)


def test_batches_of_an_engine_without_stages_wait_for_each_other() -> None:
    """A core may be told to have several in flight; the device still computes one at a time."""
    engine = SimulatedEngine(NoisySteps(Fitted(a0=0.25, a1=0.0), 0.0, Random(0)))
    batch = Batch(step_index=0, phase=Phase.DECODE, chunks=(Chunk("a", (1,), 5, (0,), True),))
    assert [engine.run(batch, 0.0) for _ in range(3)] == [(0.25, 0.25), (0.5, 0.25), (0.75, 0.25)]
    assert engine.run(batch, 2.0) == (0.25, 0.25)
