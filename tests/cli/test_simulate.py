"""`phaseserve simulate`: a file gives a report, a mistake gives one line and exit code 2 and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cli.main import main

SETTINGS = """
admission = "deadline"
[slo]
ttft_s = 2.0
tpot_s = 0.1
[simulate]
duration_s = 5.0
seed = 4
[[simulate.fleet]]
role = "prefill"
cost = {kind = "fitted", a0 = 0.01, a1 = 2e-4}
[[simulate.fleet]]
role = "decode"
count = 2
cost = {kind = "table", points = [[1, 0.01], [512, 0.1]]}
noise = 0.1
[simulate.workload]
arrivals = {kind = "steps", rates = [4.0, 8.0], step_s = 2.0}
prompt = {kind = "lognormal", mean = 120.0, median = 100.0}
output = {kind = "uniform", low = 2, high = 30}
[[simulate.changes]]
kind = "freeze"
at_s = 2.0
replica_id = "decode-1"
for_s = 0.5
"""


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "fleet.toml"
    path.write_text(SETTINGS, encoding="utf-8")
    return path


def test_a_file_gives_a_table_and_a_report(settings: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "report.json"
    assert main(["simulate", "--config", str(settings), "--json", str(target)]) == 0
    table = capsys.readouterr().out
    assert "attained" in table
    assert "decode-1" in table
    report = json.loads(target.read_bytes())
    assert report["seed"] == 4
    assert report["finished"] == report["arrived"] > 10
    assert report["layouts"]["disaggregated"] > 0
    assert report["usual"]["ttft_s"]["p90"] > 0.0


def test_options_win_over_the_file_and_the_same_run_prints_the_same(
    settings: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["simulate", "--config", str(settings), "--seed", "5", "--duration", "3", "--rate", "6", "--json", "-"]
    assert main(words) == 0
    first = capsys.readouterr().out
    assert main(words) == 0
    assert capsys.readouterr().out == first
    assert json.loads(first)["seed"] == 5


def test_without_a_file_there_is_a_fleet_and_it_takes_a_policy(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--alternating", "1", "--duration", "4", "--policy", "sarathi(512)"]) == 0
    assert "colocated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--rate", "-1"], "rate must be positive"),
        (["--set", "simulate.wrong=1"], "unknown field `wrong`"),
        (["--set", "wrong.a=1"], "unknown section 'wrong'"),
        (["--set", "cluster.layout=x"], "layout"),
        (["--set", "simulate.workload.trace.path=/nowhere.csv"], "/nowhere.csv"),
        (["--set", "simulate.fleet=[]"], "one group of replicas or more"),
        (["--set", "simulate.duration_s=inf"], "finite"),
        (["--set", 'simulate.workload.prompt={kind = "lognormal", mean = 1.0, median = 2.0}'], "mean must be"),
        (["--alternating", "-1"], "must not be negative"),
        (["--policy", "wishful"], "wishful"),
        (["--json", "/nowhere/report.json"], "there is no folder"),
        (["--config", "/nowhere.toml"], "/nowhere.toml"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "--duration", "1", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1


@pytest.mark.parametrize("option", ["--trace", "--config", "--model", "--hardware", "--cost-file", "--set"])
def test_what_is_nested_without_end_is_bad_input_wherever_it_is_read(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deep = "[" * 100_000
    path = tmp_path / {"--trace": "deep.jsonl", "--cost-file": "deep.json"}.get(option, "deep.toml")
    path.write_text(deep if path.suffix != ".toml" else f"a = {deep}", encoding="utf-8")
    beside = {"--model": ["--hardware", "h100"], "--hardware": ["--model", "qwen2-72b"]}.get(option, [])
    value = f"scheduling.max_chunk={deep}" if option == "--set" else str(path)
    assert main(["simulate", "--duration", "1", option, value, *beside]) == 2
    assert capsys.readouterr().err.count("\n") == 1
