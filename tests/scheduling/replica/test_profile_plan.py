"""The start profile is a correct life of a few sequences and identifies the cost."""

from __future__ import annotations

import pytest

from contracts.views import StepCost
from engine.fake import FakeEngine, fake_layout, fake_spec
from scheduling.profile_plan import fit_step_cost, profile_plan, shape_of


@pytest.mark.parametrize(("num_blocks", "max_context"), [(1000, 8192), (20, 100), (3, 64), (2, 16)])
def test_any_engine_can_run_it_and_keeps_nothing(num_blocks: int, max_context: int) -> None:
    spec = fake_spec(max_context=max_context)
    layout = fake_layout(spec)
    engine = FakeEngine(spec, layout, num_blocks)
    plan = profile_plan(layout, num_blocks=num_blocks, max_context=max_context, max_chunk=512, max_decodes=64)
    for index, batch in enumerate(plan):
        assert batch.step_index == index
        engine.step(batch)
    assert engine.faults == []
    assert engine.num_sequences == 0


def test_its_durations_identify_every_coefficient(lab_cost: StepCost) -> None:
    layout = fake_layout(fake_spec())
    plan = profile_plan(layout, num_blocks=1000, max_context=8192, max_chunk=512, max_decodes=64)
    samples = [(shape_of(batch), shape_of(batch).predict_s(lab_cost)) for batch in plan[1:]]
    found = fit_step_cost(samples)
    for name in ("a0", "a1", "b0", "b1", "b2", "b3"):
        assert getattr(found, name) == pytest.approx(getattr(lab_cost, name), rel=1e-3)
    assert sum(duration for _, duration in samples) < 2.5  # on this cost; one prompt and a few decode steps
    assert sum(shape.tokens for shape, _ in samples) < 1100
