"""The criterion by which a slack rule becomes the default."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from experiments.slack_rules.__main__ import main, overdraft
from experiments.slack_rules.choice import choose, judge
from experiments.slack_rules.loads import LOADS, VARIANTS, cases
from experiments.slack_rules.picture import draw_rules, panels, rules_of
from experiments.slack_rules.reading import reading
from scheduling.admission_rules import parse_rule
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.grid import Row
from simulator.grid.case import key_of


def _rows(values: dict[str, tuple[float, float]]) -> list[Row]:
    """By load, with two seeds each: the attained share by both clocks."""
    return [
        Row(
            key=f"{load}-{seed}",
            labels={"load": load, "rate": 9.5, "seed": seed},
            figures={"usual.attained": share, "ecoserve.attained": share, "overdraft_s": 1.0 + share},
        )
        for load, shares in values.items()
        for seed, share in enumerate(shares)
    ]


def test_a_rule_that_is_better_beyond_its_spread_replaces_the_default() -> None:
    rows = {
        "min": _rows({"a": (0.90, 0.91), "b": (0.80, 0.81)}),
        "max": _rows({"a": (0.95, 0.96), "b": (0.84, 0.86)}),
    }
    judged = judge(rows, "min")
    assert [one.rule for one in judged] == ["max", "min"]
    assert judged[0].difference == pytest.approx(0.0475)
    assert choose(judged, "min") == "max"


def test_noise_or_one_bad_load_leaves_the_default() -> None:
    noisy = {"min": _rows({"a": (0.9, 0.9), "b": (0.8, 0.8)}), "max": _rows({"a": (0.9, 0.99), "b": (0.79, 0.81)})}
    assert choose(judge(noisy, "min"), "min") == "min"
    uneven = {"min": _rows({"a": (0.5, 0.5), "b": (0.9, 0.9)}), "max": _rows({"a": (0.9, 0.9), "b": (0.88, 0.88)})}
    judged = judge(uneven, "min")
    assert judged[0].score > judged[1].score
    assert not judged[0].better


def test_a_rule_without_all_runs_is_not_judged() -> None:
    rows = {"min": _rows({"a": (0.9, 0.9), "b": (0.8, 0.8)}), "max": _rows({"a": (1.0, 1.0)})}
    assert [one.rule for one in judge(rows, "min")] == ["min"]


def test_every_rule_runs_under_every_load_on_equal_terms() -> None:
    for load in LOADS:
        grids = [cases(variant, load, 2) for variant in VARIANTS]
        assert {tuple(case.labels["rate"] for case in grid) for grid in grids} == {
            tuple(case.labels["rate"] for case in grids[0])
        }
        for variant, grid in zip(VARIANTS, grids, strict=True):
            rule = parse_rule(variant.removesuffix(", whole")).name
            assert {case.scenario.cluster.admission for case in grid} == {rule}
            assert {case.scenario.scheduling.window_chunking for case in grid} == {not variant.endswith("whole")}
            assert {case.scenario.workload.classes[0].slo for case in grid} == {load.slo}


def test_both_cores_have_the_same_default() -> None:
    assert ReplicaCoreConfig().admission == ClusterCoreConfig().admission
    assert ReplicaCoreConfig().window_chunking is ClusterCoreConfig().window_chunking
    assert ReplicaCoreConfig().admission in VARIANTS


def test_what_the_table_says_is_computed_from_it() -> None:
    rows = {
        "min": _rows({"a": (0.9, 0.9), "b": (0.7, 0.7)}),
        "max": _rows({"a": (0.8, 0.8), "b": (0.85, 0.85)}),
        "min, whole": _rows({"a": (0.5, 0.5), "b": (0.75, 0.75)}),
    }
    told = " ".join(" ".join(reading(rows, judge(rows, "min"), "min")).split())
    assert "`min` stays the default. Of the others `max` is best: +2.5 points" in told
    assert "most under b (+15.0)" in told
    assert "`max` beside `min`: wins 15 points under b and loses 10 points under a." in told
    assert "`min` without cuts: -18 points, -40 under a, better under b." in told
    assert "Beyond the knee of `min` rather than at it lie b (70 %)." in told
    alone = {"min": rows["min"]}
    assert "stays the default; no other rule was run" in reading(alone, judge(alone, "min"), "min")[0]
    assert reading({"max": rows["max"]}, [], "min") == ["Nothing to compare yet."]


def test_the_picture_has_every_rule_over_all_loads_and_under_each(tmp_path: Path) -> None:
    rows = {
        "min": _rows({"a": (0.9, 0.8), "b": (0.7, 0.7)}),
        "max": _rows({"a": (0.8, 0.8), "b": (0.9, 0.9)}),
        "min, whole": _rows({"a": (0.5, 0.6), "b": (0.75, 0.75)}),
        "max, whole": _rows({"a": (1.0, 1.0)}),
    }
    shown = panels(rows)
    assert [panel.title for panel in shown] == ["Mean over all loads", "a", "b"]
    assert shown[0].cut == pytest.approx({"min": 77.5, "max": 85.0})
    assert shown[0].whole == pytest.approx({"min": 65.0})  # one load of two is no mean over all
    assert shown[1].whole == pytest.approx({"min": 55.0, "max": 100.0})
    assert rules_of(shown) == ["max", "min"]
    assert not draw_rules({"min": []}, "min", tmp_path / "none.png")
    assert list(tmp_path.iterdir()) == []
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    assert draw_rules(rows, "min", tmp_path / "rules.png")
    assert (tmp_path / "rules.png").read_bytes().startswith(b"\x89PNG")


def test_stored_rows_are_shown_as_those_of_their_version_and_what_lacks_some_as_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("experiments.slack_rules.__main__.commit_of", {"5ee5": "abc1234"}.get)
    figures = {"usual.attained": 0.75, "ecoserve.attained": 0.5, "overdraft_s": 2.0, "longest_gap_s.p99": 1.0}
    grid = [case for rule in ("min", "max") for case in cases(rule, LOADS[0], 2, 0.2)][:3]
    rows = [Row(key=key_of(one.scenario, overdraft, "5ee5"), labels=one.labels, figures=figures) for one in grid]
    store = tmp_path / "rows.jsonl"
    store.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in rows))
    assert main(["--stored", "--quick", "--store", str(store), "--out", str(tmp_path)]) == 0
    text = (tmp_path / "RESULT.md").read_text()
    assert "rows of commit abc1234 (code 5ee5), shown by" in text
    assert "| `min` | 75.0 / 50.0 | 1.00 s | 4.0 s |" in text
    assert "| `max` |" not in text
    assert text.split("## Not run")[1].split() == ["-", "`max`"]
