"""The scale experiment: its cases are what they say, and what was measured once is not measured again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import ConfigError
from experiments.scale.cases import CODE, beside_vidur, cost, many_replicas, many_requests
from experiments.scale.measuring import Store, name_of
from experiments.scale.one import Case, measure
from experiments.scale.vidur_side import tables, write_trace
from scheduling.step_shape import StepShape

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:0{second}.0000000,{100 + second},{3 + second}\n" for second in range(8)
)


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """A folder with a short code trace."""
    (tmp_path / CODE).write_text(TRACE)
    return tmp_path


def test_a_small_case_is_run_and_measured(traces: Path) -> None:
    case = Case(kind="requests", traces=str(traces), trace=CODE, replicas=2, num_requests=30)
    found = measure(case)
    assert (found.requests, found.decision_us.count) == (30, 30)
    assert found.output_tokens > 30
    assert found.steps > 0
    assert found.cpu_s > 0.0
    assert found.view_us.count > 0


def test_replicas_without_links_and_with_slow_views() -> None:
    scenario = many_replicas(3, 10, 0.5)
    assert (scenario.fleet[0].count, scenario.heartbeat_s, scenario.fleet[0].link_bytes_per_s) == (3, 0.5, 0.0)


def test_a_trace_that_is_not_there_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="there is no trace"):
        many_requests(tmp_path, CODE, 2, 10)
    with pytest.raises(ConfigError, match="there is no trace"):
        beside_vidur(tmp_path, 1, 10)


def test_what_is_known_is_not_measured_again(tmp_path: Path) -> None:
    asked: list[int] = []

    def once() -> dict[str, Any]:
        asked.append(1)
        return {"cpu_s": 1.0}

    path = tmp_path / "results" / "scale.jsonl"
    name = name_of(Case(kind="replicas", traces="/somewhere", replicas=3, num_requests=4))
    assert "somewhere" not in name
    first = Store(path).found(name, once)
    assert Store(path).found(name, once) == first
    assert asked == [1]


def test_vidur_gets_our_step_times(tmp_path: Path) -> None:
    """Its sum over layers, for a prompt's chunk and decode rows in one batch, is our formula."""
    numbers = {name: getattr(cost(), name) for name in ("a0", "a1", "b0", "b1", "b2", "b3")}
    found = tables(numbers, layers=32, granularity=256, batch=16)
    shape = StepShape()
    shape.add_prefill(512, 128)
    shape.add_decodes(8, 8 * 1024)
    theirs = 32 * (found["attn_pre_proj"][(136,)] + found["attn_prefill"][(512, 128)] + found["attn_decode"][(8, 1024)])
    assert theirs / 1e3 == pytest.approx(cost().step_s(shape), rel=1e-9)
    assert found["add"][(7,)] == 0.0
    write_trace(tmp_path / "trace.csv", [[0.5, 10, 3]])
    assert (tmp_path / "trace.csv").read_text().splitlines()[1] == "day,0.5,10,3"
