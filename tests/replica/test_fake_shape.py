"""The fake engine of a replica: its KV has the size of the model that it stands for."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from replica.config import FakeConfig, read_config
from replica.load import Pace, load_engine


def test_a_token_takes_the_kv_bytes_of_the_shape_that_was_set() -> None:
    shape = '"num_layers": 24, "num_kv_heads": 2, "head_dim": 64, "dtype": "bfloat16", "num_blocks": 4'
    config = read_config(f'{{"replica_id": "r0", "kind": "fake", "fake": {{{shape}}}}}')
    engine = load_engine(config).engine
    assert engine.kv_layout.bytes_per_token == 24 * 2 * 2 * 64 * 2
    assert engine.kv_memory is not None
    assert engine.kv_memory.nbytes == 4 * 16 * engine.kv_layout.bytes_per_token


def test_a_shape_without_layers_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match=r"fake\.num_layers") as caught:
        FakeConfig(num_layers=0)
    assert caught.value.param == "fake.num_layers"


def test_parts_of_a_step_that_took_too_long_are_taken_off_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [100.0], []

    def sleep(seconds: float) -> None:
        slept.append(round(seconds, 6))
        now[0] += seconds + 0.003  # woken late

    monkeypatch.setattr("replica.load.time.perf_counter", lambda: now[0])
    monkeypatch.setattr("replica.load.time.sleep", sleep)
    pace = Pace()
    pace.begin()
    for _ in range(3):
        pace.wait(0.01)
        now[0] += 0.002  # computed meanwhile
    assert slept == [0.01, 0.005, 0.005]
    now[0] += 1.0
    pace.wait(0.01)
    assert slept[-1] == 0.0
    pace.begin()
    pace.wait(0.01)
    assert slept[-1] == 0.01
