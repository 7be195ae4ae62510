"""`phaseserve simulate` by names: models, hardware, layouts, data sets, traces; and the picture of the phases."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cli.main import main
from simulator.exit_status import EXIT_UNREAD

TRACE = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
    f"2023-11-16 18:17:{second:02d}.0000000,{100 + second},5\n" for second in range(20)
)


def report_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", "--duration", "3", "--rate", "4", *words, "--json", "-"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def roles(report: dict[str, Any]) -> list[str]:
    return [replica["role"] for replica in report["replicas"]]


@pytest.mark.parametrize(
    ("layout", "expected", "placed"),
    [
        ("phased", ["alternating"] * 4, "phased"),
        ("colocated", ["mixed"] * 4, "colocated"),
        ("1:3", ["prefill"] + ["decode"] * 3, "disaggregated"),
        ("1:1", ["prefill"] * 2 + ["decode"] * 2, "disaggregated"),
        ("ecoserve_paper", ["alternating"] * 4, "phased"),
        ("sarathi(512)", ["mixed"] * 4, "colocated"),
    ],
)
def test_a_layout_is_a_word(layout: str, expected: list[str], placed: str, capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, "--layout", layout, "--replicas", "4")
    assert roles(report) == expected
    assert list(report["layouts"]) == [placed]


def test_auto_begins_mixed_with_the_planner_on(capsys: pytest.CaptureFixture[str]) -> None:
    report = report_of(capsys, "--layout", "auto", "--replicas", "2")
    assert roles(report) == ["mixed", "mixed"]


def test_bigger_hardware_is_faster_and_a_slower_link_is_slower(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "qwen3-32b", "--tp", "2", "--layout", "1:1", "--replicas", "2")
    slow = report_of(capsys, *words, "--hardware", "a100-80")
    fast = report_of(capsys, *words, "--hardware", "b200")
    thin = report_of(capsys, *words, "--hardware", "b200", "--link-rate", "1")
    assert fast["usual"]["tpot_s"]["p50"] < slow["usual"]["tpot_s"]["p50"]
    assert thin["exposed_s"]["p50"] > 2.0 * fast["exposed_s"]["p50"]
    assert thin["kv_bytes"] >= thin["handed_over"] * 256 * 1024


def test_stages_and_targets_and_data_sets(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("--model", "qwen3-8b", "--hardware", "l20", "--layout", "phased", "--replicas", "1", "--data", "alpaca")
    report = report_of(capsys, *words, "--pp", "2", "--slo-ttft-s", "1e-6")
    assert report["usual"]["attained"] == 0.0
    assert report["usual"]["met_p50"] is False
    assert report["attained_per_s"] == 0.0
    assert report_of(capsys, *words)["usual"]["met_p90"] is True


def test_a_trace_runs_at_the_rate_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(TRACE)
    report = report_of(capsys, "--trace", str(path))
    assert report["rate"] == pytest.approx(4.0, rel=0.25)
    assert report["arrived"] == 12


def test_the_phases_are_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "phases.png"
    words = ["simulate", "--duration", "3", "--timeline", str(target), "--timeline-from", "1", "--timeline-for", "2"]
    assert main(words) == 0
    assert target.read_bytes().startswith(b"\x89PNG")
    assert "attained" in capsys.readouterr().out


def test_a_reader_who_leaves_early_ends_the_program_without_a_word() -> None:
    here, there = os.pipe()
    os.close(here)
    try:
        argv = [sys.executable, "-P", "-m", "cli", "simulate", "--duration", "1"]
        ended = subprocess.run(argv, stdout=there, stderr=subprocess.PIPE, text=True, timeout=60.0, check=False)
    finally:
        os.close(there)
    assert (ended.returncode, ended.stderr) == (EXIT_UNREAD, "")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--model", "nope", "--hardware", "l20"], "no model 'nope'"),
        (["--model", "qwen3-8b", "--hardware", "abacus"], "no hardware 'abacus'"),
        (["--model", "qwen2-72b", "--hardware", "l20"], "does not fit"),
        (["--model", "qwen3-8b", "--hardware", "l20", "--tp", "0"], "tp 0"),
        (["--hardware", "l20"], "--model"),
        (["--tp", "2"], "--model"),
        (["--layout", "sideways"], "sideways"),
        (["--layout", "1:2", "--replicas", "4"], "cannot be 1:2"),
        (["--layout", "phased", "--policy", "min"], "exclude each other"),
        (["--layout", "phased", "--mixed", "2"], "exclude each other"),
        (["--replicas", "3"], "--layout"),
        (["--layout", "phased", "--replicas", "0"], "at least 1"),
        (["--link-rate", "-1"], "must not be negative"),
        (["--link-rate", "nan"], "must not be negative"),
        (["--link-rate", "inf"], "nor above"),
        (["--json", "x" * 300], "File name too long"),
        (["--json", "{folder}/a", "--timeline", "{folder}/a"], "both name"),
        (["--slo-ttft-s", "nan"], "slo.ttft_s"),
        (["--slo-tpot-s", "0"], "slo.tpot_s"),
        (["--rate", "nan"], "rate must be positive"),
        (["--rate", "inf"], "rate must be positive"),
        (["--duration", "nan"], "duration_s"),
        (["--data", "mybook"], "mybook"),
        (["--data", "alpaca", "--trace", "x.csv"], "exclude each other"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--trace", "{file}"], "no column TIMESTAMP"),
        (["--trace", "{binary}"], "binary"),
        (["--trace", "{lines}"], "line 1"),
        (["--seed", "x"], "--seed"),
        (["--timeline", "/nowhere/a.png"], "there is no folder"),
        (["--timeline", "{folder}"], "cannot be written"),
        (["--json", "{folder}"], "cannot be written"),
        (["--timeline", "{folder}/a.png", "--timeline-for", "0"], "timeline"),
        (["--timeline", "{folder}/a.png", "--timeline-from", "99"], "nothing to draw"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a,b\n1,2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "lines.jsonl").write_text('{"timestamp": "soon"}\n')
    before = sorted(tmp_path.rglob("*"))
    names = {name: tmp_path / name for name in ("file", "binary")}
    given = [word.format(folder=tmp_path, lines=tmp_path / "lines.jsonl", **names) for word in words]
    assert main(["simulate", "--duration", "1", *given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before
