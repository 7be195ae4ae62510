"""Settings are checked when built, and what an engine gets follows from them."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch

from contracts.errors import ConfigError
from contracts.kv import KVLayout
from engine import kv_sizing
from engine.build import assemble_engine
from engine.config import EngineConfig
from engine.kv_sizing import choose_num_blocks
from engine.sampling.sampler import Sampler
from engine.torch_engine import TorchEngine

CPU = torch.device("cpu")
LAYOUT = KVLayout(num_layers=2, num_kv_heads=2, head_dim=16, block_size=16, dtype="float32")


def build(model: Any, **config: Any) -> TorchEngine:
    chosen = EngineConfig(**{"device": "cpu", "num_blocks": 32, **config})
    return assemble_engine(model.spec, model.weight_files, chosen, Sampler(96, (), 0))


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("block_size", 0),
        ("block_size", 257),
        ("num_blocks", -1),
        ("kv_bytes", -1),
        ("max_context", -5),
        ("threads", -1),
        ("seed", -1),
        ("device", "tpu"),
        ("dtype", "float64"),
        ("quantization", "int4"),
        ("executor", "jax"),
        ("model", ""),
    ],
)
def test_a_wrong_setting_is_named(setting: str, value: Any) -> None:
    with pytest.raises(ConfigError) as caught:
        EngineConfig(**{setting: value})
    assert caught.value.param == setting


def test_both_sizes_are_refused_and_unknown_names_are() -> None:
    with pytest.raises(ConfigError, match="not both"):
        EngineConfig(num_blocks=1, kv_bytes=1)
    with pytest.raises(msgspec.ValidationError, match="unknown field `blok_size`"):
        msgspec.convert({"blok_size": 16}, EngineConfig)


def test_blocks_by_count_by_bytes_and_by_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    block_bytes = 2 * LAYOUT.block_bytes_per_layer
    assert choose_num_blocks(EngineConfig(num_blocks=7), LAYOUT, CPU) == 7
    assert choose_num_blocks(EngineConfig(kv_bytes=block_bytes * 5 + 1), LAYOUT, CPU) == 5
    monkeypatch.setattr(kv_sizing, "available_memory_bytes", lambda: block_bytes * 100)
    assert choose_num_blocks(EngineConfig(), LAYOUT, CPU) == 40
    monkeypatch.setattr(kv_sizing, "available_memory_bytes", lambda: 1 << 50)
    assert choose_num_blocks(EngineConfig(), LAYOUT, CPU) == (2 << 30) // block_bytes
    with pytest.raises(ConfigError, match="hold no block"):
        choose_num_blocks(EngineConfig(kv_bytes=block_bytes - 1), LAYOUT, CPU)


def test_available_memory_is_plausible() -> None:
    assert 1 << 20 < kv_sizing.available_memory_bytes() < 1 << 50


def test_context_is_what_model_setting_and_cache_allow(make_tiny: Any) -> None:
    model = make_tiny("Llama")
    assert build(model).spec.max_context == 256
    assert build(model, max_context=100).spec.max_context == 100
    assert build(model, num_blocks=3).spec.max_context == 48
    with pytest.raises(ConfigError, match="max_context 257"):
        build(model, max_context=257)


def test_layout_follows_model_and_settings(make_tiny: Any) -> None:
    engine = build(make_tiny("Llama"), block_size=8, dtype="bfloat16")
    want = KVLayout(num_layers=3, num_kv_heads=2, head_dim=16, block_size=8, dtype="bfloat16")
    assert (engine.kv_layout, engine.num_blocks) == (want, 32)


def test_a_device_that_is_not_there_is_refused(make_tiny: Any) -> None:
    for device in ("cuda:99", "cuda:x"):
        with pytest.raises(ConfigError) as caught:
            build(make_tiny("Llama"), device=device)
        assert caught.value.param == "device"


def test_native_is_refused_where_it_cannot_run(make_tiny: Any) -> None:
    with pytest.raises(ConfigError, match="executor native") as caught:
        build(make_tiny("Llama"), executor="native", dtype="bfloat16")
    assert caught.value.param == "executor"


def test_a_cpu_without_the_native_executor_warns(make_tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("WARNING", logger="engine.build"):
        build(make_tiny("Llama"), dtype="bfloat16")
    assert [record.getMessage() for record in caplog.records if "no native executor" in record.getMessage()]


def test_the_choice_is_logged_in_one_line(make_tiny: Any, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="engine.build"):
        build(make_tiny("Llama"), executor="torch")
    [line] = [record.getMessage() for record in caplog.records if record.name == "engine.build"]
    for word in ("Llama", "cpu", "torch executor", "float32", "512 tokens"):
        assert word in line
