"""What a run is made from: arrivals, lengths, traces, costs; and how quantiles are kept."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from itertools import islice, pairwise

import pytest

from contracts.errors import ConfigError
from contracts.phase import Role
from scheduling.chunk_config import ChunkConfig
from scheduling.step_shape import StepShape
from simulator.arrivals import Arrivals, Diurnal, Gamma, Steps
from simulator.changes import Add
from simulator.cost import Fitted, NoisySteps, Table, believed_of
from simulator.cost_file import Measured
from simulator.lengths import Constant, Empirical, LogNormal, Uniform
from simulator.models import Moe
from simulator.roofline import Roofline
from simulator.scenario import Group, Scenario
from simulator.scenarios import KV_34B, L20_34B
from simulator.statistics import EXACT, Sketch, jain_index
from simulator.traces import Trace
from simulator.workload import SharedPrefixes, Workload, draw


@pytest.mark.parametrize("cv", [0.0, 0.5, 1.0, 2.0])
def test_gaps_have_the_mean_and_the_spread_asked_for(cv: float) -> None:
    times = list(islice(Gamma(rate=5.0, cv=cv).times(random.Random(1)), 20_000))
    gaps = [late - early for early, late in pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(0.2, rel=0.05)
    assert statistics.pstdev(gaps) / statistics.fmean(gaps) == pytest.approx(cv, abs=0.06)


def count_in(arrivals: Arrivals, spans: list[tuple[float, float]]) -> list[int]:
    counts = [0] * len(spans)
    for at in arrivals.times(random.Random(3)):
        if at >= spans[-1][1]:
            return counts
        for number, (begin, end) in enumerate(spans):
            counts[number] += begin <= at < end
    return counts


def test_steps_have_their_rates_and_may_pause() -> None:
    low, none, high = count_in(Steps(rates=(10.0, 0.0, 40.0), step_s=100.0), [(0, 100), (100, 200), (200, 300)])
    assert low == pytest.approx(1000, rel=0.1)
    assert none == 0
    assert high == pytest.approx(4000, rel=0.1)


def test_a_day_is_busiest_in_the_middle() -> None:
    night, noon = count_in(Diurnal(rate=20.0, swing=0.8, period_s=200.0), [(0, 20), (90, 110)])
    assert noon > 5 * night


def test_lognormal_lengths_have_mean_and_median() -> None:
    drawn = random.Random(2)
    lengths = [LogNormal(mean=344.0, median=148.0, most=100_000).draw(drawn) for _ in range(20_000)]
    assert statistics.median(lengths) == pytest.approx(148, rel=0.05)
    assert statistics.fmean(lengths) == pytest.approx(344, rel=0.08)


def test_other_lengths_stay_in_their_bounds() -> None:
    drawn = random.Random(2)
    assert {Constant(tokens=7).draw(drawn) for _ in range(10)} == {7}
    assert {Uniform(low=2, high=4).draw(drawn) for _ in range(100)} == {2, 3, 4}
    assert {Empirical(values=(5, 9)).draw(drawn) for _ in range(100)} == {5, 9}


def test_shared_prefixes_are_shared_and_the_rest_is_not() -> None:
    workload = Workload(prompt=Constant(tokens=100), shared=SharedPrefixes(count=2, tokens=64), num_requests=50)
    arrivals = list(draw(workload, random.Random(0)))
    assert len({arrival.prompt[:64] for arrival in arrivals}) == 2
    assert len({arrival.prompt[64:] for arrival in arrivals}) == 50


def shape(*prefill: tuple[int, int], decodes: int = 0, context: int = 0) -> StepShape:
    made = StepShape()
    for past, chunk in prefill:
        made.add_prefill(past, chunk)
    made.add_decodes(decodes, context)
    return made


LLAMA_30B_L20 = Roofline(model="llama-30b", hardware="l20", tp=4)


def test_a_roofline_is_bound_by_memory_in_decode_and_by_compute_in_prefill() -> None:
    one, eight = (LLAMA_30B_L20.step_s(shape(decodes=n, context=100 * n)) for n in (1, 8))
    assert eight < 1.1 * one
    short, long = (LLAMA_30B_L20.step_s(shape((0, n))) for n in (1024, 2048))
    assert long == pytest.approx(2 * short, rel=0.1)


@pytest.mark.parametrize("model", [LLAMA_30B_L20, Table(points=((1, 0.02), (512, 0.1), (2048, 0.4)), context_s=1e-7)])
def test_what_a_profile_finds_is_near_the_truth(model: Roofline | Table) -> None:
    believed = believed_of(model)
    for step in (shape((0, 512)), shape((1024, 512)), shape(decodes=16, context=8000)):
        assert step.predict_s(believed) == pytest.approx(model.step_s(step), rel=0.35)


def test_a_table_is_read_between_and_beyond_its_points() -> None:
    table = Table(points=((10, 0.1), (20, 0.2), (40, 0.3)))
    measured = [table.step_s(shape((0, n))) for n in (1, 10, 15, 40, 60)]
    assert measured == pytest.approx([0.1, 0.1, 0.15, 0.3, 0.4])


def test_noise_keeps_the_mean() -> None:
    steps = NoisySteps(Fitted(a0=0.1, a1=0.0), 0.2, random.Random(5))
    drawn = [steps.step_s(shape(decodes=1, context=1)) for _ in range(20_000)]
    assert statistics.fmean(drawn) == pytest.approx(0.1, rel=0.01)
    assert statistics.pstdev(drawn) / 0.1 == pytest.approx(0.2, rel=0.05)


def test_published_kv_sizes() -> None:
    """EcoServe table 2."""
    assert KV_34B.layout.bytes_per_token == 196_608
    assert 1.0 / L20_34B.a1 == pytest.approx(3419.0)


@pytest.mark.parametrize("count", [EXACT // 2, EXACT * 3])
def test_a_sketch_tells_quantiles_before_and_after_it_stops_being_exact(count: int) -> None:
    drawn = random.Random(4)
    values = [drawn.lognormvariate(-3.0, 1.0) for _ in range(count)]
    sketch = Sketch()
    for value in values:
        sketch.add(value)
    values.sort()
    for share in (0.5, 0.9, 0.99):
        exact = values[max(0, round(share * count) - 1)]
        assert sketch.quantile(share) == pytest.approx(exact, rel=0.006)
    assert sketch.summary().most == values[-1]
    assert sketch.mean == pytest.approx(statistics.fmean(values))


def test_jain() -> None:
    assert jain_index([1.0, 1.0]) == 1.0
    assert jain_index([1.0, 0.0, 0.0, 0.0]) == 0.25
    assert jain_index([]) == 1.0


NAN, INF, HUGE = math.nan, math.inf, 10**12


@pytest.mark.parametrize(
    "make",
    [
        lambda: Steps(rates=(1.0, NAN, 2.0), step_s=1.0),
        lambda: Steps(rates=(1.0, INF, 2.0), step_s=1.0),
        lambda: Steps(rates=(0.0, 2.0), step_s=INF),
        lambda: Gamma(rate=1e300),
        lambda: Diurnal(rate=1e300),
        lambda: Trace(path="t.csv", speed=1e300),
        lambda: Scenario(fleet=(Group(role=Role.MIXED, cost=L20_34B),), heartbeat_s=1e-18),
        lambda: Table(points=((1, NAN), (2, 0.1))),
        lambda: Table(points=((1, 0.1), (2, NAN))),
        lambda: Table(points=((1, 0.1), (2, INF))),
        lambda: Moe(num_experts=8, top_k=2, expert_size=64, skew=NAN),
        lambda: Moe(num_experts=8, top_k=2, expert_size=64, skew=INF),
        lambda: Constant(tokens=HUGE),
        lambda: Uniform(low=1, high=HUGE),
        lambda: LogNormal(mean=2.0, median=1.0, most=HUGE),
        lambda: Empirical(values=(1, HUGE)),
        lambda: SharedPrefixes(count=HUGE, tokens=1),
        lambda: SharedPrefixes(count=1, tokens=HUGE),
        lambda: SharedPrefixes(count=2, tokens=1, skew=1e5),
        lambda: SharedPrefixes(count=2, tokens=1, skew=NAN),
        lambda: Workload(parts=HUGE),
        lambda: Add(at_s=1.0, count=0),
        lambda: Add(at_s=1.0, count=-HUGE),
        lambda: ChunkConfig(largest=HUGE, grain=1),
        lambda: Measured(tokens=1, past_chunk=0, chunk_sq=1, decode_context=0, decodes=0, past=0, alone_s=()),
        lambda: Measured(tokens=1, past_chunk=0, chunk_sq=1, decode_context=0, decodes=0, past=0, alone_s=(0.0,)),
        lambda: Measured(tokens=0, past_chunk=0, chunk_sq=0, decode_context=0, decodes=0, past=0, alone_s=(0.1,)),
    ],
)
def test_what_would_never_end_or_fill_the_memory_is_refused(make: Callable[[], object]) -> None:
    """NaN passes every comparison that is written the other way round; TOML has it."""
    with pytest.raises(ConfigError):
        make()


def test_wrong_settings_are_named() -> None:
    with pytest.raises(ConfigError, match=r"cost\.a0 must not be negative"):
        Fitted(a0=-1.0, a1=0.1)
    with pytest.raises(ConfigError, match="tp 0 must divide the 52 heads"):
        Roofline(model="llama-30b", hardware="l20", tp=0)
    with pytest.raises(ConfigError, match="arrivals: rate must be positive"):
        Gamma(rate=-1.0)
    with pytest.raises(ConfigError, match="fleet must hold one group"):
        Scenario(fleet=())
    group = Group(role=Role.MIXED, cost=L20_34B)
    with pytest.raises(ConfigError, match="two groups of the fleet are called mixed"):
        Scenario(fleet=(group, group))
