"""The rate of a link from landings: busy time only, heads left out, pauses never counted."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.rate import MIN_PUT_BYTES, RateMeter, tail

PUT = 1 << 20


@given(st.floats(1e5, 1e10), st.lists(st.integers(1, 20), min_size=1, max_size=10), st.floats(0.0, 100.0))
def test_a_steady_link_is_measured_whatever_the_pauses(rate: float, bursts: list[int], pause_s: float) -> None:
    meter, now, busy_s = RateMeter(), 0.0, 0.0
    for puts in bursts:
        now += pause_s + PUT / rate
        meter.landed(now, PUT, back_to_back=False)
        for _ in range(puts):
            now += PUT / rate
            busy_s += PUT / rate
            meter.landed(now, PUT, back_to_back=True)
    found = meter.take(0.0)
    assert found is not None
    num_bytes, duration_s = found
    # Differences of times lose the digits that the times spend on the seconds before them.
    assert num_bytes / duration_s == pytest.approx(rate, rel=1e-6 + 1e-13 * now * rate / PUT)
    assert duration_s <= busy_s * (1 + 1e-6) + 1e-9 * now
    assert meter.take(0.0) is None or meter.take(0.0) == (0, 0.0)


def test_a_fast_head_does_not_count() -> None:
    """A token bucket lets 4 MiB through at once, then 10 MB/s."""
    landings = [(0.0, PUT), (0.0001, PUT), (0.0002, PUT), (0.0003, PUT)]
    landings += [(0.0003 + (i + 1) * PUT / 10e6, PUT) for i in range(8)]
    found = tail(landings)
    assert found is not None
    assert found[0] / found[1] == pytest.approx(10e6, rel=0.01)


def test_short_runs_add_up() -> None:
    meter = RateMeter()
    for start in (0.0, 10.0, 20.0):
        meter.landed(start, PUT, back_to_back=False)
        meter.landed(start + 0.02, PUT, back_to_back=True)
        assert meter.take(0.05) is None or start == 20.0
    assert meter.take(0.05) is None


def test_what_was_taken_is_gone() -> None:
    meter = RateMeter()
    meter.landed(0.0, PUT, back_to_back=False)
    meter.landed(1.0, PUT, back_to_back=True)
    assert meter.take(0.05) == (PUT, 1.0)
    assert meter.take(0.05) is None


def test_small_and_single_puts_tell_nothing() -> None:
    meter = RateMeter()
    for i in range(10):
        meter.landed(float(i), MIN_PUT_BYTES - 1, back_to_back=True)
    meter.landed(20.0, PUT, back_to_back=False)
    assert meter.take(0.05) is None
    assert tail([]) is None
    assert tail([(1.0, PUT)]) is None
    assert tail([(1.0, PUT), (1.0, PUT)]) is None


@given(st.lists(st.tuples(st.floats(0, 10), st.integers(0, PUT)), max_size=40))
def test_the_tail_is_part_of_what_landed(landings: list[tuple[float, int]]) -> None:
    landings.sort()
    found = tail(landings)
    if found is not None:
        assert 0 < found[0] <= sum(count for _, count in landings[1:])
        assert 0 < found[1] <= landings[-1][0] - landings[0][0]
