"""A mixed step whose decode part is paid on top: pure steps are untouched, more work never takes less."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from scheduling.step_shape import StepShape
from simulator.cost import Apart
from simulator.deployment import Deployment


def _shape(rows: int, chunk: int, past: int = 0) -> StepShape:
    shape = StepShape()
    if rows:
        shape.add_decodes(rows, 400 * rows)
    if chunk:
        shape.add_prefill(past, chunk)
    return shape


@pytest.mark.parametrize("past", [0, 6000])
@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_mixed_steps_pay_that_share_of_their_decodes(share: float, past: int) -> None:
    model = Deployment(model="codellama2-34b", hardware="l20", tp=4).cost
    apart = Apart(of=model, share=share)
    decode_s, prefill_s = model.step_s(_shape(30, 0)), model.step_s(_shape(0, 480, past))
    assert apart.step_s(_shape(30, 0)) == decode_s
    assert apart.step_s(_shape(0, 480, past)) == prefill_s
    mixed_s = apart.step_s(_shape(30, 480, past))
    assert mixed_s == max(model.step_s(_shape(30, 480, past)), prefill_s + share * decode_s)
    assert mixed_s <= apart.step_s(_shape(60, 480, past)) <= apart.step_s(_shape(60, 960, past))


def test_a_share_is_a_share() -> None:
    with pytest.raises(ConfigError, match="between 0 and 1"):
        Apart(of=Deployment(model="codellama2-34b", hardware="l20", tp=4).cost, share=1.5)
