"""DCP's two chunk policies and its delay scheduling against their definitions, and the predictor on a cost it is not
told."""

from __future__ import annotations

import math
from itertools import pairwise
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ConfigError
from contracts.phase import Role
from contracts.request import Slo
from contracts.views import StepCost
from scheduling import micro_batches
from scheduling.chunk_config import ChunkConfig
from scheduling.chunk_policies import smallest_feasible
from scheduling.config import ReplicaCoreConfig
from scheduling.load_seen import LoadSeen
from scheduling.step_predictor import StepPredictor
from scheduling.step_shape import StepShape

Lab = Any
SIZES = ChunkConfig().sizes


def test_the_candidates_are_those_of_the_paper() -> None:
    assert (SIZES[0], SIZES[-1], len(SIZES)) == (128, 2048, 16)
    assert all(size % 128 == 0 for size in SIZES)


@settings(max_examples=300)
@given(
    rows=st.integers(0, 600),
    a0=st.floats(0.0, 0.1),
    a1=st.floats(1e-6, 1e-3),
    b1=st.floats(0.0, 1e-7),
    tokens_per_s=st.sampled_from([0.0, 100.0, 1000.0, 5000.0, 20_000.0, math.inf]),
    limit_s=st.floats(0.001, 1.0),
)
def test_the_smallest_feasible_size_is_what_trying_all_finds(
    rows: int, a0: float, a1: float, b1: float, tokens_per_s: float, limit_s: float
) -> None:
    def time_s(size: int) -> float:
        chunk = max(0, size - rows)
        return a0 + a1 * size + b1 * chunk * chunk

    within = [size for size in SIZES if time_s(size) <= limit_s]
    enough = {size for size in within if (size - rows) / time_s(size) >= tokens_per_s}
    expected = min(enough) if enough else max(within, default=None)
    found = smallest_feasible(SIZES, time_s, rows=rows, tokens_per_s=tokens_per_s, limit_s=limit_s)
    if found != expected:  # but for rounding where a size is only just enough
        assert found is not None
        assert expected is not None
        edge = min(found, expected)
        assert (edge - rows) / time_s(edge) == pytest.approx(tokens_per_s, rel=1e-9)


def hidden_s(shape: StepShape, noise: Random) -> float:
    """Whole tiles of 128 rows in the linear layers, attention by pairs, a few percent of noise."""
    tiles = -(-shape.tokens // 128)
    exact = math.hypot(0.010, 0.0044 * tiles) + 0.004 + 4e-9 * shape.past_chunk + 2e-9 * shape.chunk_sq
    return (exact + 4.5e-8 * shape.decode_context + 2e-5 * shape.decodes) * noise.lognormvariate(0.0, 0.02)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_the_predictor_errs_less_than_5_percent_after_200_steps_on_a_cost_it_was_not_told(seed: int) -> None:
    """The start is the paper's: only the terms that count tokens, from steps of 128 to 2048."""
    noise = Random(seed)
    predictor = StepPredictor(StepCost(a0=0.011, a1=3.6e-5, b0=0.0, b1=0.0, b2=0.0, b3=0.0))
    errors = []
    size = 512
    for number in range(600):
        if number % 20 == 0:  # the load moves, and the chunk with it
            size = noise.choice((128, 256, 384, 512, 768, 1024))
        rows = noise.randrange(20, 90)
        shape = StepShape()
        shape.add_decodes(rows, rows * noise.randrange(400, 1500))
        if noise.random() < 0.8:
            shape.add_prefill(noise.randrange(0, 2000), size - rows)
        took_s = hidden_s(shape, noise)
        if number >= 200:
            errors.append(abs(predictor.predict_s(shape) - took_s) / took_s)
        predictor.update(shape, took_s)
    assert sum(errors) / len(errors) < 0.05


def lab_of(replica_lab: Lab, rule: str, *, depth: int = 1, **chunks: Any) -> Lab:
    config = ReplicaCoreConfig(
        admission=rule,
        pipeline_depth=depth,
        max_chunk=2048,
        min_chunk=1,
        prefix_cache=False,
        chunks=ChunkConfig(**({"smallest": 16, "largest": 256, "grain": 16} | chunks)),
    )
    return replica_lab(Role.MIXED, config=config, num_blocks=2048, block_size=4, max_context=4096)


def test_greedy_takes_more_under_pressure_and_less_when_streams_are_late(replica_lab: Lab) -> None:
    lab = lab_of(replica_lab, "dcp_greedy")
    for index in range(6):
        lab.arrive(f"p{index}", 600, max_tokens=4, slo=Slo(ttft_s=0.4, tpot_s=0.5))
    sizes = []
    for _ in range(14):
        sizes.append(sum(len(chunk.token_ids) for chunk in lab.in_flight.chunks))
        lab.step()
    assert sizes[0] == 16
    assert lab.core.state.load.size > 16
    assert all(later - early in (-16, 0, 16) for early, later in pairwise(sizes)), sizes
    lab.arrive("tight", 40, max_tokens=40, slo=Slo(ttft_s=2.0, tpot_s=0.001))  # nobody can keep this
    for _ in range(40):
        lab.step()
    assert lab.core.state.load.size == 16
    lab.finish()


def test_greedy_decides_as_often_as_a_batch_goes_round(replica_lab: Lab) -> None:
    lab = lab_of(replica_lab, "dcp_greedy", depth=4)
    for index in range(12):
        lab.arrive(f"p{index}", 400, max_tokens=4, slo=Slo(ttft_s=1.0, tpot_s=5.0))
    sizes = []
    for _ in range(48):
        lab.step()
        sizes.append(lab.core.state.load.size)
    changes = [index for index in range(1, 48) if sizes[index] != sizes[index - 1]]
    assert changes
    assert all(later - early >= 4 for early, later in pairwise(changes))
    lab.finish()


def test_greedy_with_little_kv_left_takes_what_just_holds_the_streams(replica_lab: Lab) -> None:
    lab = lab_of(replica_lab, "dcp_greedy", free_share=1.0)
    lab.core.state.load.size = 256
    for index in range(20):
        lab.arrive(f"p{index}", 30, max_tokens=30)
    for _ in range(20):
        lab.step()
        rows = sum(len(chunk.token_ids) == 1 and chunk.start > 0 for chunk in lab.in_flight.chunks)
        assert sum(len(chunk.token_ids) for chunk in lab.in_flight.chunks) <= 16 * (rows // 16 + 1)
    lab.finish()


@pytest.mark.parametrize("depth", [1, 4])
def test_predictive_keeps_a_round_trip_within_the_tpot_target(replica_lab: Lab, depth: int) -> None:
    """The lab's steps take 10 ms and 1 ms a token: of 0.4 s a stage has 0.4 / depth."""
    lab = lab_of(replica_lab, "dcp_predictive", depth=depth)
    for index in range(16):
        lab.arrive(f"p{index}", 500, max_tokens=3, slo=Slo(ttft_s=0.5, tpot_s=0.4))
    for _ in range(20):
        assert lab.duration(lab.in_flight) <= 0.4 / depth + 1e-9
        lab.step()
    largest = max(batch.num_tokens for _, batch in lab.batches)
    assert largest == {1: 256, 4: 80}[depth], "late prompts take the largest step that streams can bear"
    lab.finish()


def test_predictive_takes_no_more_than_keeps_up_with_the_arrivals(replica_lab: Lab) -> None:
    lab = lab_of(replica_lab, "dcp_predictive")
    for index in range(12):
        lab.now += 1.0
        lab.arrive(f"p{index}", 100, max_tokens=2, slo=Slo(ttft_s=30.0, tpot_s=0.4))
        for _ in range(3):
            lab.step()
    lab.finish()
    assert {batch.num_tokens for _, batch in lab.batches[8:]} <= set(range(17)), "16 suffice for 100 tokens a second"


def test_the_arriving_rate_is_that_of_the_window() -> None:
    seen = LoadSeen()
    assert seen.arriving_per_s(5.0, 10.0) == 0.0
    seen.arrived(100, 0.0)
    assert seen.arriving_per_s(0.5, 10.0) == 100.0  # never over less than a second
    seen.arrived(300, 4.0)
    assert seen.arriving_per_s(5.0, 10.0) == 80.0
    assert seen.arriving_per_s(12.0, 10.0) == 30.0
    assert seen.arriving_per_s(20.0, 10.0) == 0.0


def streams(replica_lab: Lab, count: int, kind: Any, depth: int, tpot_s: float = 100.0) -> Lab:
    config = ReplicaCoreConfig(
        pipeline_depth=depth, micro_batches=kind, prefix_cache=False, admission="sarathi(4096)", max_running=128
    )
    lab = replica_lab(Role.MIXED, config=config, num_blocks=2048, block_size=4)
    for index in range(count):
        lab.arrive(f"s{index:02}", 3, max_tokens=40, slo=Slo(ttft_s=1.0, tpot_s=tpot_s))
        lab.now += 0.001
    while lab.core.state.prefilling or lab.core.state.waiting:
        lab.step()
    return lab


@pytest.mark.parametrize(("tpot_s", "latest"), [(100.0, True), (1e-6, False)])
def test_delayed_cuts_a_batch_at_a_boundary_and_who_was_left_out_goes_next(
    replica_lab: Lab, monkeypatch: pytest.MonkeyPatch, tpot_s: float, latest: bool
) -> None:
    """Left out are the latest to come, or the first ones where streams have no slack."""
    assert micro_batches.BOUNDARIES == (128, 256, 384)
    monkeypatch.setattr(micro_batches, "BOUNDARIES", (8, 16))
    monkeypatch.setattr(micro_batches, "EXCESS", 3)
    lab = streams(replica_lab, 21, "delayed", 2, tpot_s)
    state = lab.core.state
    cuts = 0
    for _ in range(16):
        before = set(state.held)
        lab.step()
        names = {chunk.sequence_id for chunk in (lab.behind[-1] if lab.behind else lab.in_flight).chunks}
        assert before <= names, "held back twice in turn"
        assert not names & state.held
        if state.held and names - before:
            cuts += len(names) == 8
            first, last = (names - before, state.held) if latest else (state.held, names - before)
            assert max(first) < min(last)
    assert cuts
    lab.finish()


def test_even_and_kept_differ_in_who_goes_along(replica_lab: Lab) -> None:
    for kind in ("even", "kept"):
        lab = streams(replica_lab, 30, kind, depth=3)
        for _ in range(9):
            lab.step()
        sizes = [len(batch.chunks) for batch in (lab.in_flight, *lab.behind)]
        assert (sizes == [10, 10, 10]) == (kind == "even"), sizes
        lab.finish()


@pytest.mark.parametrize(
    ("settings_", "told"),
    [
        ({"largest": 64}, "largest must be at least"),
        ({"grain": 0}, "grain must be at least 1"),
        ({"calm": 1.5}, "calm must be between"),
        ({"window_s": 0.0}, "window_s must be positive"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings_: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        ChunkConfig(**settings_)
    with pytest.raises(ConfigError, match="even, kept or delayed"):
        ReplicaCoreConfig(micro_batches="other")  # type: ignore[arg-type]


@pytest.mark.parametrize(("ttft_s", "tokens"), [(60.0, 16), (1.07, 48), (0.1, None)])
def test_the_deadline_budget_of_a_pipeline_takes_what_prompts_need_and_streams_can_spare(
    replica_lab: Lab, ttft_s: float, tokens: int | None
) -> None:
    """Steps take 10 ms and 1 ms a token. No hurry: the smallest size. 150 tokens in 0.7 of 1.07 s, a chunk in each
    fourth batch: 800 a second, which 48 are the first to give. What nothing gives in time: what the stream can spare.
    """
    lab = lab_of(replica_lab, "deadline", depth=4, window_s=1000.0)
    lab.arrive("stream", 4, max_tokens=200, slo=Slo(ttft_s=9.0, tpot_s=0.3))
    lab.step()
    lab.arrive("prompt", 150, max_tokens=2, slo=Slo(ttft_s=ttft_s, tpot_s=0.3))
    stream = lab.core.state.sequences["stream"]
    spare_s = (stream.deadline + stream.tpot_s - lab.now) / 4
    first = next(b for b in [lab.in_flight, *lab.behind] if any(c.sequence_id == "prompt" for c in b.chunks))
    expected = int((spare_s - 0.010) / 0.001) // 16 * 16 if tokens is None else tokens
    assert first.num_tokens == expected
    lab.finish()
