"""The fake engine of a replica: its KV has the size of the model that it stands for."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from replica.config import FakeConfig, read_config
from replica.load import load_engine


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
