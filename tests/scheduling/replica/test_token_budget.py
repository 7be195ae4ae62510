"""The largest chunk that keeps a deadline, against a scan; closed forms against their loops."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.views import StepCost
from scheduling.step_cost import predict_prefill_s, predict_step_s
from scheduling.step_shape import StepShape, prefill_s
from scheduling.token_budget import largest_chunk

COST = StepCost(a0=0.01, a1=0.001, b0=1e-7, b1=2e-7, b2=1e-6, b3=0.0005)


def time_s(shape: StepShape, past: int, chunk: int) -> float:
    copy = StepShape(shape.tokens, shape.past_chunk, shape.chunk_sq, shape.decode_context, shape.decodes)
    copy.add_prefill(past, chunk)
    return copy.predict_s(COST)


@given(
    st.integers(0, 50),
    st.integers(0, 3000),
    st.integers(0, 700),
    st.floats(0.0, 1.0),
    st.sampled_from([1, 16, 24]),
)
def test_equals_a_scan(decodes: int, past: int, limit: int, allowed_s: float, multiple: int) -> None:
    shape = StepShape()
    shape.add_decodes(decodes, 100 * decodes)
    candidates = {0, limit} | set(range(0, limit, multiple))
    fitting = [c for c in candidates if c == 0 or time_s(shape, past, c) <= allowed_s]
    found = largest_chunk(COST, shape, past=past, limit=limit, allowed_s=allowed_s, multiple=multiple)
    assert found == max(fitting)


@given(st.integers(0, 2000), st.integers(0, 2000), st.integers(1, 600))
def test_prefill_in_chunks_has_a_closed_form(past: int, tokens: int, chunk: int) -> None:
    looped = predict_prefill_s(COST, past=past, tokens=tokens, chunk=chunk)
    assert prefill_s(COST, past, tokens, chunk) == pytest.approx(looped)


def test_a_shape_predicts_what_the_shared_function_does() -> None:
    shape = StepShape()
    shape.add_prefill(64, 32)
    shape.add_prefill(0, 7)
    shape.add_decodes(3, 500)
    assert shape.predict_s(COST) == pytest.approx(
        predict_step_s(COST, prefill=((64, 32), (0, 7)), decodes=3, decode_context=500)
    )
    assert StepShape().predict_s(COST) == 0.0
