"""The random stream: known answers, and values that look uniform and unrelated."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from engine.sampling.stream import mix64, stream_key, uniform


def test_it_is_splitmix64() -> None:
    known = [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431]
    assert [uniform(1234567, index) for index in range(4)] == [(value >> 11) / 2**53 for value in known]


@given(st.integers(), st.integers(min_value=0, max_value=10**9))
def test_values_stay_in_the_unit_interval(seed: int, index: int) -> None:
    assert 0.0 <= uniform(stream_key(seed, 0, "a"), index) < 1.0


def test_values_are_uniform_and_neighbours_unrelated() -> None:
    """Chi-square over 16 x 16 cells of (value i of seed s, value i of seed s + 1): 255 degrees, 330.5 is p = 0.001."""
    counts = [0] * 256
    draws = 40_000
    for seed, index in itertools.product(range(200), range(draws // 200)):
        pair = (uniform(stream_key(seed, 0, "a"), index), uniform(stream_key(seed + 1, 0, "a"), index + 1))
        counts[int(pair[0] * 16) * 16 + int(pair[1] * 16)] += 1
    expected = draws / 256
    assert sum((count - expected) ** 2 / expected for count in counts) < 330.5


def test_the_key_comes_from_the_seed_or_else_from_replica_and_sequence() -> None:
    assert stream_key(7, 0, "a") == stream_key(7, 1, "b")
    assert stream_key(7, 0, "a") == stream_key(7 + 2**64, 0, "a")
    keys = {stream_key(None, seed, name) for seed in (0, 1) for name in ("a", "b")} | {stream_key(0, 0, "a")}
    assert len(keys) == 5


def test_mixing_loses_nothing() -> None:
    assert len({mix64(value) for value in range(10_000)}) == 10_000
