"""Hardware and model files, and what a model needs on a kind of hardware."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ConfigError
from scheduling.step_shape import StepShape
from simulator import hardware as hardware_room
from simulator import models as model_room
from simulator.deployment import Deployment
from simulator.hardware import hardware, hardware_names
from simulator.models import model, model_names
from simulator.roofline import Roofline
from simulator.scenarios import deployed, small
from simulator.sourced import read_numbers
from simulator.stage_time import tiled

BILLIONS = {
    "llama-30b": (32.5, 32.5),
    "codellama2-34b": (33.7, 33.7),
    "qwen2-72b": (72.7, 72.7),
    "llama-3-8b": (8.03, 8.03),
    "llama-3-70b": (70.6, 70.6),
    "qwen2.5-14b": (14.8, 14.8),
    "qwen2.5-32b": (32.8, 32.8),
    "qwen3-8b": (8.2, 8.2),
    "qwen3-32b": (32.8, 32.8),
    "qwen3-30b-a3b": (30.5, 3.3),
    "deepseek-v3": (671.0, 37.0),
    "smollm2-135m": (0.135, 0.135),
}
"""All weights, and those that a token passes, as the models' cards print them."""


def numbers(value: object, prefix: str = "") -> list[str]:
    """The dotted names of all numbers of a table."""
    if not isinstance(value, dict):
        return [] if isinstance(value, str | bool) else [prefix]
    return [name for key, each in value.items() for name in numbers(each, f"{prefix}.{key}" if prefix else key)]


@pytest.mark.parametrize(
    ("folder", "name"),
    [(hardware_room.FOLDER, name) for name in hardware_names()] + [(model_room.FOLDER, name) for name in model_names()],
)
def test_every_number_has_its_source(folder: Path, name: str) -> None:
    values, sources = read_numbers(folder, name, "file")
    assert [number for number in numbers(values) if not sources.get(number)] == []


@pytest.mark.parametrize("name", BILLIONS)
def test_models_have_the_weights_that_their_cards_print(name: str) -> None:
    every, active = BILLIONS[name]
    one = model(name)
    embedding = 0 if one.tied_embeddings else one.head_params
    assert one.num_params / 1e9 == pytest.approx(every, rel=0.01)
    assert (one.active_params + embedding) / 1e9 == pytest.approx(active, rel=0.02)


@pytest.mark.parametrize(
    ("name", "size"),
    [("llama-30b", 1_597_440), ("codellama2-34b", 196_608), ("qwen2-72b", 327_680), ("deepseek-v3", 61 * 576 * 2)],
)
def test_kv_sizes(name: str, size: int) -> None:
    """EcoServe (OSDI'26) table 2; DeepSeek-V2 for the latent."""
    hardware_name, tp = ("h200", 8) if name == "deepseek-v3" else ("a800", 4)
    assert Deployment(model=name, hardware=hardware_name, tp=tp).kv_bytes_per_token == size


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"model": "qwen2-72b", "hardware": "l20", "tp": 2}, r"needs 7\d\.\d GB .* and has 43\.2 GB"),
        ({"model": "deepseek-v3", "hardware": "h100", "tp": 8}, "does not fit on H100"),
        ({"model": "deepseek-v3", "hardware": "a800", "tp": 8}, "does not compute in float8"),
        ({"model": "llama-30b", "hardware": "l20", "tp": 8}, "must divide the 52 heads"),
        ({"model": "qwen2.5-14b", "hardware": "l20", "tp": 5}, "tp 5 must divide the 8 KV heads"),
        ({"model": "qwen2-72b", "hardware": "l20", "tp": 16}, "more than the 8 L20"),
        ({"model": "qwen2-72b", "hardware": "l20", "pp": 81}, "between 1 and the 80 layers"),
        ({"model": "qwen2-72b", "hardware": "l20", "tp": 8, "dtype": "float4"}, "does not compute in float4"),
        ({"model": "qwen2-72b", "hardware": "l20", "tp": 8, "kv_dtype": "float8"}, "kv_dtype must be one of"),
        ({"model": "gpt-2", "hardware": "l20"}, "there is no model 'gpt-2'; there are codellama2-34b"),
        ({"model": "qwen2-72b", "hardware": "abacus"}, "there is no hardware 'abacus'"),
        ({"model": "../qwen2-72b", "hardware": "l20"}, "there is no model"),
        ({"model": "none.toml", "hardware": "l20"}, r"model none\.toml: No such file"),
    ],
)
def test_what_is_not_possible_is_said(asked: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says) as caught:
        Deployment(**asked)  # type: ignore[arg-type]
    assert caught.value.param
    assert "\n" not in caught.value.message


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("memory_bytes = -1.0", "memory_bytes must be positive"),
        ("memory_bytes = 'much'", "Expected `float`, got `str`"),
        ("memory_bytes = { value = 1.0, from = 'me' }", r"memory_bytes is to be \{ value"),
        ("compute_share = 1.5", "compute_share must lie above 0"),
        ("flop_s = { bits = 1.0 }", "flop_s must hold dtypes of"),
        ("flop_s = { bfloat16 = -1.0 }", "flop_s must be positive"),
        ("colour = 3", "unknown field `colour`"),
        ("launch_s = inf", "launch_s must not be negative"),
        ("= 1", "hardware .*own.toml"),
    ],
)
def test_a_wrong_file_of_ones_own_is_refused_by_name(tmp_path: Path, wrong: str, says: str) -> None:
    key = wrong.partition("=")[0].strip()
    lines = (hardware_room.FOLDER / "l20.toml").read_text(encoding="utf-8").split("\n[flop_s]")
    kept = [line for line in lines[0].splitlines() if not key or not line.startswith(f"{key} ")]
    rest = "" if key == "flop_s" else "\n[flop_s]" + lines[1]
    path = tmp_path / "own.toml"
    path.write_text("\n".join([*kept, wrong]) + rest, encoding="utf-8")
    with pytest.raises(ConfigError, match=says):
        hardware(str(path))


def test_a_file_of_ones_own_with_bare_numbers_will_do(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "name = 'tiny'\nhidden_size = 64\nintermediate_size = 128\nnum_layers = 2\nnum_heads = 4\nnum_kv_heads = 2\n"
        "head_dim = 16\nvocab_size = 100\nmax_context = 512\n",
        encoding="utf-8",
    )
    there = Deployment(model=str(path), hardware="l20", tp=4)
    assert there.max_context == 512
    assert there.kv_bytes_per_token == 2 * 2 * 2 * 16 * 2


def test_kv_heads_are_repeated_when_there_are_more_devices() -> None:
    few, many = (Roofline(model="qwen3-30b-a3b", hardware="h100", tp=tp).stage_kv_bytes(48) for tp in (4, 8))
    assert few == many
    latent = [Roofline(model="deepseek-v3", hardware="h200", tp=tp).stage_kv_bytes(61) for tp in (1, 8)]
    assert latent == [61 * 576 * 2] * 2


def test_the_layers_of_all_stages_are_all_layers() -> None:
    pipeline = Roofline(model="deepseek-v3", hardware="h200", tp=8, pp=3)
    assert sum(pipeline.stage_layers()) == 61
    whole = Roofline(model="deepseek-v3", hardware="h200", tp=8)
    parts = sum(pipeline.stage_weight_bytes(stage) for stage in range(3))
    assert parts == pytest.approx(whole.stage_weight_bytes(0))
    assert whole.stage_weight_bytes(0) * 8 == pytest.approx(model("deepseek-v3").num_params)
    step = StepShape()
    step.add_prefill(0, 512)
    assert pipeline.step_s(step) == pytest.approx(sum(pipeline.stage_times_s(step)) + 2 * pipeline.hop_s(step))


def test_what_is_deployed_is_what_a_scenario_wants() -> None:
    scenario = small(mixed=1, **deployed("codellama2-34b", "l20", tp=4))
    assert scenario.fleet[0].kv.layout.bytes_per_token == 196_608
    assert scenario.fleet[0].max_context == 16_384


def test_steps_of_tiles() -> None:
    assert [tiled(rows, 128) for rows in (0, 1, 16, 17, 100, 128, 129, 256, 257)] == [
        0, 16, 16, 32, 128, 128, 256, 256, 384,
    ]  # fmt: skip


def test_dcp_saw_these_steps() -> None:
    """DCP (OSDI'26), Qwen2.5-32B on 4 A100-40GB: decode batches of 96, 128 and 160; 129 tokens take as long as 256."""
    pipeline = Roofline(model="qwen2.5-32b", hardware="a100-40", pp=4)

    def decodes(rows: int) -> float:
        shape = StepShape()
        shape.add_decodes(rows, 300 * rows)
        return pipeline.step_s(shape)

    assert decodes(128) / decodes(96) == pytest.approx(1.05, abs=0.03)
    assert decodes(160) / decodes(128) == pytest.approx(1.31, abs=0.04)


CASES = [
    Roofline(model="codellama2-34b", hardware="l20", tp=4),
    Roofline(model="deepseek-v3", hardware="h200", tp=8),
    Roofline(model="qwen3-30b-a3b", hardware="h100", tp=2, pp=2),
]
COUNTS = st.integers(0, 3000)


@settings(max_examples=150, deadline=None)
@given(
    cost=st.sampled_from(CASES),
    chunks=st.lists(st.tuples(COUNTS, st.integers(1, 2500)), max_size=3),
    decodes=st.lists(st.integers(1, 9000), max_size=300),
    more=st.one_of(st.tuples(COUNTS, st.integers(1, 2500)), st.integers(1, 9000)),
)
def test_more_work_never_takes_less(
    cost: Roofline, chunks: list[tuple[int, int]], decodes: list[int], more: tuple[int, int] | int
) -> None:
    shape = StepShape()
    for past, chunk in chunks:
        shape.add_prefill(past, chunk)
    if decodes:
        shape.add_decodes(len(decodes), sum(decodes))
    before = cost.step_s(shape)
    if isinstance(more, int):
        shape.add_decodes(1, more)
    else:
        shape.add_prefill(*more)
    assert cost.step_s(shape) >= before
