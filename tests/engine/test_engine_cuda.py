"""The same code path on CUDA, where there is one: float32 and half precision against the CPU reference."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="this machine has no CUDA device")


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-3), ("bfloat16", 0.08), ("float16", 0.02)])
def test_mixed_batches_match_transformers(
    family: str, dtype: str, tolerance: float, make_tiny: Any, make_driver: Any, tokens: Any
) -> None:
    model = make_tiny(family)
    driver = make_driver(model, device="cuda", dtype=dtype)
    for seed, sequence_id in enumerate("abc"):
        driver.start(sequence_id, tokens(60, seed))
    for moves in ({"a": 31}, {"a": 1, "b": 40}, {"a": 20, "b": 1, "c": 60}, {"a": 1, "b": 1}, {"a": 7, "b": 18}):
        driver.step(moves)
    for seed, sequence_id in enumerate("abc"):
        want = model.logits(tokens(60, seed))
        assert float((driver.logits(sequence_id).cpu() - want).norm() / want.norm()) < tolerance, sequence_id


def test_int8_is_close(make_tiny: Any, make_driver: Any, tokens: Any) -> None:
    model = make_tiny("Llama")
    driver = make_driver(model, device="cuda", quantization="int8")
    driver.start("q", tokens(60, 2))
    want = model.logits(tokens(60, 2))
    assert float((driver.run("q", 13).cpu() - want).norm() / want.norm()) < 0.2
