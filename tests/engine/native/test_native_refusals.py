"""Nothing wrong reaches compiled code: bad steps, bad rows and unsupported models are refused before it runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from contracts.errors import ConfigError, EngineFailure
from engine.executor import StepInputs

SHAPE = {"num_heads": 9, "num_kv_heads": 3, "head_dim": 64}

Spoil = Callable[[StepInputs], dict[str, torch.Tensor]]

WRONG: dict[str, Spoil] = {
    "a block that does not exist": lambda i: {"block_table": i.block_table + 1000},
    "a negative block": lambda i: {"block_table": i.block_table - 1000},
    "a slot that does not exist": lambda i: {"slots": i.slots + 1000 * 16},
    "a context beyond its blocks": lambda i: {"context_len": i.context_len + 64},
    "positions of another place": lambda i: {"positions": i.positions + 1},
    "rows that no sequence owns": lambda i: {"query_start": i.query_start - 1},
    "a wrong dtype": lambda i: {"positions": i.positions.long()},
    "a stride": lambda i: {"slots": i.slots.repeat_interleave(2)[::2]},
    "too few block tables": lambda i: {"block_table": i.block_table[:0]},
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_steps_never_reach_the_kernels(make_rig: Any, what: str) -> None:
    rig = make_rig(**SHAPE)
    executor, cache = rig.executor()
    good = rig.inputs((rig.tokens(20, 0), 0, 20, [3, 1]))
    fields = {name: getattr(good, name) for name in StepInputs.__slots__}
    bad = StepInputs(**{**fields, **WRONG[what](good)})
    with pytest.raises(EngineFailure):
        executor.run_layers(executor.embed(good), bad, 0, 2)
    assert not any(bool(layer.any()) for layer in cache.layers)


def test_wrong_rows_and_layers_are_refused(make_rig: Any) -> None:
    rig = make_rig(**SHAPE)
    executor, _ = rig.executor()
    inputs = rig.inputs((rig.tokens(20, 0), 0, 20, [3, 1]))
    hidden = executor.embed(inputs)
    for first, last in ((-1, 1), (1, 0), (0, 3)):
        with pytest.raises(EngineFailure, match="layers"):
            executor.run_layers(hidden, inputs, first, last)
    with pytest.raises(EngineFailure, match="19 hidden rows"):
        executor.run_layers(hidden[:19], inputs, 0, 2)
    with pytest.raises(EngineFailure, match="hidden must be"):
        executor.logits(hidden[:, :-1])


def test_models_that_the_kernels_cannot_run_are_refused(make_rig: Any) -> None:
    rig = make_rig(num_heads=2, num_kv_heads=1, head_dim=20)
    with pytest.raises(ConfigError, match="head_dim 20"):
        rig.executor()
