"""The predictor learns a hidden cost, keeps coefficients usable and is not led astray."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.views import StepCost
from scheduling.profile_plan import fit_step_cost
from scheduling.step_predictor import ResidualWindow, StepPredictor
from scheduling.step_shape import StepShape

HIDDEN = StepCost(a0=0.012, a1=0.0016, b0=2e-8, b1=1e-8, b2=1.5e-6, b3=0.0004)
STARTS = {
    "near": StepCost(a0=0.01, a1=0.001, b0=1e-8, b1=1e-8, b2=1e-6, b3=0.0),
    "far": StepCost(a0=0.1, a1=0.0002, b0=0.0, b1=0.0, b2=0.0, b3=0.01),
    "nothing": StepCost(a0=0.0, a1=0.0, b0=0.0, b1=0.0, b2=0.0, b3=0.0),
}


def draw_shape(chance: random.Random) -> StepShape:
    shape = StepShape()
    if chance.random() < 0.3:
        for _ in range(chance.randint(1, 3)):
            shape.add_prefill(chance.randint(0, 2000), chance.choice([16, 64, 128, 512]))
    else:
        rows = chance.randint(1, 32)
        shape.add_decodes(rows, rows * chance.randint(50, 1500))
    return shape


@pytest.mark.parametrize("start", STARTS)
def test_mean_error_is_below_five_percent_after_200_steps(start: str) -> None:
    chance = random.Random(1)
    predictor = StepPredictor(STARTS[start])
    for _ in range(200):
        shape = draw_shape(chance)
        predictor.update(shape, shape.predict_s(HIDDEN) * chance.gauss(1.0, 0.02))
    assert predictor.mape < 0.05 or start == "nothing"
    fresh = [draw_shape(chance) for _ in range(100)]
    errors = [abs(predictor.predict_s(s) / s.predict_s(HIDDEN) - 1.0) for s in fresh]
    assert sum(errors) / len(errors) < 0.05


def test_it_follows_a_machine_that_becomes_slower() -> None:
    chance = random.Random(2)
    predictor = StepPredictor(HIDDEN, forgetting=0.98)
    for _ in range(300):
        shape = draw_shape(chance)
        predictor.update(shape, 1.7 * shape.predict_s(HIDDEN))
    shape = draw_shape(chance)
    assert predictor.predict_s(shape) == pytest.approx(1.7 * shape.predict_s(HIDDEN), rel=0.05)


@pytest.mark.parametrize("before", [0, 1, 40])
def test_a_hiccup_of_a_replica_that_only_prefills_is_mended_by_the_next_prompts(before: int) -> None:
    chance = random.Random(6)
    predictor = StepPredictor(HIDDEN)

    def prompt(times: float) -> None:
        shape = StepShape()
        shape.add_prefill(0, chance.randint(128, 512))
        predictor.update(shape, times * shape.predict_s(HIDDEN))

    for _ in range(before):
        prompt(1.0)
    prompt(25.0)
    probe, longest = StepShape(), StepShape()
    probe.add_prefill(0, 300)
    longest.add_prefill(0, 512)
    assert predictor.cost.margin_s < 4.0 * longest.predict_s(HIDDEN)
    for _ in range(10):
        prompt(1.0)
    assert predictor.predict_s(probe) == pytest.approx(probe.predict_s(HIDDEN), rel=0.3)


def test_one_hiccup_changes_little_and_the_margin_covers_noise() -> None:
    chance = random.Random(3)
    predictor = StepPredictor(HIDDEN)
    for _ in range(200):
        shape = draw_shape(chance)
        predictor.update(shape, shape.predict_s(HIDDEN) * chance.uniform(0.9, 1.1))
    shape.add_decodes(1, 100)
    before = predictor.predict_s(shape)
    predictor.update(shape, 30.0)
    assert predictor.predict_s(shape) < 1.3 * before
    covered = 0
    for _ in range(200):
        shape = draw_shape(chance)
        covered += shape.predict_s(HIDDEN) * chance.uniform(0.9, 1.1) <= predictor.upper_s(shape)
    assert 180 <= covered <= 200
    assert 0.05 < predictor.relative_margin < 0.2


@pytest.mark.parametrize("forgetting", [0.995, 0.5])
def test_many_steps_of_one_shape_do_not_unlearn_the_others(forgetting: float) -> None:
    """Nothing is learned about prefill while only decodes run, so what is known of it must not be forgotten."""
    chance = random.Random(5)
    predictor = StepPredictor(HIDDEN, forgetting=forgetting)
    decode = StepShape()
    decode.add_decodes(8, 8 * 500)
    for _ in range(3000):
        predictor.update(decode, decode.predict_s(HIDDEN) * chance.gauss(1.0, 0.05))
    for shape in (draw_shape(chance) for _ in range(50)):
        assert predictor.predict_s(shape) == pytest.approx(shape.predict_s(HIDDEN), rel=0.5)


@pytest.mark.parametrize("seed", range(4))
def test_a_replica_that_only_decodes_does_not_drift_from_what_it_measures(seed: int) -> None:
    """Its tokens and rows are one number and its context goes with them, so single coefficients come out negative."""
    chance = random.Random(seed)
    true = StepCost(a0=0.0312, a1=0.0, b0=5e-9, b1=3.5e-8, b2=1.4e-7, b3=3e-5)
    start = StepCost(a0=0.0306, a1=2.2e-4, b0=5e-9, b1=3.5e-8, b2=6.6e-8, b3=9e-6)
    predictor = StepPredictor(start)
    streams: list[list[int]] = []  # context, tokens to come
    errors = []
    for _ in range(2500):
        if chance.random() < 0.1 or not streams:
            streams.append([round(chance.lognormvariate(5.0, 1.3)) + 1, round(chance.lognormvariate(5.0, 0.9)) + 1])
        shape = StepShape()
        shape.add_decodes(len(streams), sum(context for context, _ in streams))
        errors.append(abs(predictor.predict_s(shape) / shape.predict_s(true) - 1.0))
        predictor.update(shape, shape.predict_s(true) * chance.lognormvariate(0.0, 0.03))
        streams = [[context + 1, left - 1] for context, left in streams if left > 1]
    assert max(errors[200:]) < 0.1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 4000),
            st.integers(0, 600),
            st.integers(0, 64),
            st.one_of(st.floats(allow_nan=True, allow_infinity=True), st.floats(1e-6, 100.0)),
        ),
        max_size=60,
    )
)
@settings(deadline=None)
def test_no_measurement_breaks_it(steps: list[tuple[int, int, int, float]]) -> None:
    """Coefficients stay finite and not negative, so a prediction always grows with the work."""
    predictor = StepPredictor(HIDDEN)
    for past, chunk, decodes, duration in steps:
        shape = StepShape()
        if chunk:
            shape.add_prefill(past, chunk)
        shape.add_decodes(decodes, decodes * past)
        predictor.update(shape, duration)
        cost = predictor.cost
        for value in (cost.a0, cost.a1, cost.b0, cost.b1, cost.b2, cost.b3, cost.margin_s):
            assert 0.0 <= value < float("inf")


def test_residuals_are_the_last_ones_and_rounded_up() -> None:
    window = ResidualWindow(size=4)
    assert (window.upper(0.95), window.mean_abs()) == (0.0, 0.0)
    for residual in (100.0, 1.0, -2.0, 3.0, 4.0):
        window.add(residual)
    assert window.upper(1.0) == 4.0
    assert window.upper(0.5) == 3.0
    assert window.mean_abs() == pytest.approx(2.5)
    for _ in range(4):
        window.add(-1.0)
    assert window.upper(0.95) == 0.0  # a margin is never negative


def test_the_fit_finds_the_hidden_cost_and_never_a_negative_one() -> None:
    chance = random.Random(4)
    shapes = [draw_shape(chance) for _ in range(40)]
    cost = fit_step_cost([(shape, shape.predict_s(HIDDEN)) for shape in shapes])
    for shape in (draw_shape(chance) for _ in range(50)):
        assert shape.predict_s(cost) == pytest.approx(shape.predict_s(HIDDEN), rel=1e-3)
    wild = fit_step_cost([(shape, chance.uniform(0.001, 1.0)) for shape in shapes])
    assert min(wild.a0, wild.a1, wild.b0, wild.b1, wild.b2, wild.b3, wild.margin_s) >= 0.0
    with pytest.raises(ValueError, match="no step"):
        fit_step_cost([(StepShape(), 1.0)])
