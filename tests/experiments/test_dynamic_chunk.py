"""The chunk experiment: its cases run, and its tables tell what rows say."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from experiments.dynamic_chunk.loads import AZURE, SHAREGPT, TRACE, Load, case, stages
from experiments.dynamic_chunk.reading import reading, verdict
from experiments.dynamic_chunk.tables import HEAD, compared, delay_lines, line, scan_head, scan_lines
from simulator.grid import Row, run_grid


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Row]]:
    traces: Path = tmp_path_factory.mktemp("traces")
    requests = "".join(
        f"2023-11-16 18:{n // 60:02}:{n % 60:02}.000000,{200 + n % 300},{5 + n % 7}\n" for n in range(2100)
    )
    (traces / TRACE).write_text(f"TIMESTAMP,ContextTokens,GeneratedTokens\n{requests}")
    load = Load(data=AZURE, rate=10.0, requests=25)
    policies = ("sarathi(128)", "sarathi(512)", "deadline", "dcp_greedy", "dcp_predictive")
    cases = [case(load, policy, 4, traces) for policy in policies]
    found = run_grid(cases, None, workers=1, progress=False, extra=stages)
    assert [row.error for row in found] == [""] * len(policies)
    return {str(row["policy"]): [row] for row in found}


def test_every_policy_serves_all_and_its_stages_are_told(rows: dict[str, list[Row]]) -> None:
    for policy, (row,) in rows.items():
        assert row["finished"] == row["arrived"] == 25
        parts = [row.number(name) for name in ("busy", "p_p", "p_d", "d_d", "starved")]
        assert min(parts) >= 0.0
        assert sum(parts) <= 1.0 + 1e-9
        assert line(policy, [row]).count("|") == HEAD[-1].count("|")


def test_each_policy_is_compared_with_the_fixed_chunk_that_did_best(rows: dict[str, list[Row]]) -> None:
    lines = compared({AZURE: rows})
    assert len(lines) == 2 + 3
    named = {text.split("|")[3].strip() for text in lines[2:]}
    assert len(named) == 1
    assert named <= {"`sarathi(128)`", "`sarathi(512)`"}
    assert scan_lines("deadline", 1.0, rows["deadline"])[0].count("|") == scan_head((10.0,))[-1].count("|")
    assert delay_lines(rows["deadline"])[-1].startswith("| 10 |")


def changed(row: Row, labels: Mapping[str, str | int], figures: Mapping[str, float]) -> Row:
    return msgspec.structs.replace(row, labels={**row.labels, **labels}, figures={**row.figures, **figures})


def test_what_is_said_in_the_end_is_computed_from_the_rows(rows: dict[str, list[Row]]) -> None:
    delayed = [
        changed(row, {"micro_batches": kind}, {"e2e_s.mean": mean_s})
        for row in rows["deadline"]
        for kind, mean_s in (("kept", 9.0), ("delayed", 7.5))
    ]
    shares = {"sarathi(128)": 0.5, "sarathi(512)": 0.9, "deadline": 0.975}
    made = {
        name: [changed(row, {"seed": seed}, {"usual.attained": share}) for seed in (0, 1) for row in rows[name]]
        for name, share in shares.items()
    }
    said = "\n".join(reading({AZURE: made}, {"Two": made}, delayed, [row for found in made.values() for row in found]))
    assert (
        "`deadline`: 97.5 % within the targets, 7.5 points more than with the best fixed chunk (`sarathi(512)`" in said
    )
    assert "Two: `sarathi(128)` 50.0 %, `sarathi(512)` 90.0 %, `deadline` 97.5 %, 47.5 points between" in said
    assert "mean E2E -1.5 s" in said
    assert "`sarathi(128)` none, `sarathi(512)` 10/s" in said
    assert "Seeds differ by up to 0.0 points" in said
    assert reading({}, {}, [], []) == ["Nothing to compare yet."]


@pytest.mark.parametrize(
    ("here", "paper", "told"),
    [(-0.18, -0.20, "agrees"), (-0.02, -0.35, "less"), (-0.5, -0.35, "more"), (0.03, -0.19, "does not agree")],
)
def test_a_change_agrees_within_five_points(here: float, paper: float, told: str) -> None:
    assert verdict(here, paper) == told


def test_lengths_of_sharegpt_come_as_often_as_the_rate_says() -> None:
    made = case(Load(data=SHAREGPT, rate=7.0, requests=30), "dcp_greedy", 2, Path(), seed=3, micro_batches="delayed")
    assert made.scenario.workload.num_requests == 30
    assert made.scenario.scheduling.micro_batches == "delayed"
    assert (made.labels["pp"], made.labels["seed"]) == (2, 3)
