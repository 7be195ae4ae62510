"""`phaseserve sweep`: a grid gives tables and pictures, a killed one goes on, a mistake is one line and exit code 2."""

from __future__ import annotations

import csv
import importlib.util
import io
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cli import sweep
from cli.main import main
from cli.sweep_axes import parse_variation, values_of
from cli.sweep_pictures import _cells, _lines, _suffix, _word
from contracts.errors import ConfigError
from simulator.grid import Row

FILE = """
[slo]
ttft_s = 1.0
[sweep]
rate = "2:4:2"
layout = ["phased", "1:1"]
replicas = 2
duration = 2
"""
TABLES = {"rows.jsonl", "sweep.csv", "sweep.parquet", "goodput.csv"}
SMALL = ("--layout", "phased,1:1", "--replicas", "2", "--duration", "2")


def rows_of(folder: Path, name: str = "sweep.csv") -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO((folder / name).read_text())))


def files_of(folder: Path) -> dict[str, bytes]:
    """Without the store, whose lines stand in the order in which they came."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "rows.jsonl"}


def test_live_becomes_the_program_with_the_words_that_are_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append((path, argv)))
    sweep.run(["--live", "--engine", "fake"])
    assert became == [
        (sys.executable, [sys.executable, "-P", "-m", "experiments.bandwidth_sweep", "--engine", "fake"]),
    ]


def test_a_file_and_options_give_tables_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "grid.toml").write_text(FILE)
    out = tmp_path / "out"
    words = ["sweep", "--config", str(tmp_path / "grid.toml"), "--seed", "0,1", "--workers", "1", "--out", str(out)]
    words += ["--vary", "scheduling.max_chunk=[512]", "--link-rate", "10"]
    assert main(words) == 0
    said = capsys.readouterr().out
    assert "goodput/s" in said
    assert {path.name for path in out.iterdir()} == TABLES | {"attainment.png", "pareto.png"}
    rows = rows_of(out)
    assert len(rows) == 2 * 2 * 2
    assert [(row["layout"], row["rate"], row["seed"]) for row in rows[:4]] == [
        ("phased", "2.0", "0"), ("phased", "2.0", "1"), ("phased", "4.0", "0"), ("phased", "4.0", "1"),
    ]  # fmt: skip
    assert {row["scheduling.max_chunk"] for row in rows} == {"512"}
    assert all(float(row["kv_bytes"]) > 0.0 for row in rows if row["layout"] == "1:1")
    assert {row["kv_bytes_per_token"] for row in rows} == {"196608"}
    assert len(rows_of(out, "goodput.csv")) == 2
    before = files_of(out)
    assert main([*words, "--no-plots"]) == 0
    assert files_of(out) == before


def test_parquet_holds_what_the_csv_does(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert main(["sweep", *SMALL, "--workers", "1", "--no-plots", "--out", str(tmp_path)]) == 0
    table = parquet.read_table(tmp_path / "sweep.parquet").to_pylist()
    for kept, read in zip(rows_of(tmp_path), table, strict=True):
        assert {name: "" if value is None else str(value) for name, value in read.items()} == kept


def test_what_cannot_be_is_refused_or_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SMALL, "--model", "qwen3-8b,qwen2-72b", "--hardware", "l20", "--workers", "1", "--no-plots"]
    out = tmp_path / "out"
    assert main([*words, "--out", str(out)]) == 2
    assert "Qwen2-72B does not fit on L20" in capsys.readouterr().err
    assert not out.exists()
    assert main([*words, "--out", str(out), "--leave-out"]) == 0
    assert {row["model"] for row in rows_of(out)} == {"qwen3-8b"}


def test_a_case_that_fails_is_told_and_the_others_are_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", "--layout", "phased", "--replicas", "1,2", "--duration", "2", "--workers", "1", "--no-plots"]
    words += ["--set", 'simulate.changes=[{kind = "drain", at_s = 1.0, replica_id = "alternating-1"}]']
    words += ["--set", "simulate.scaling.most=3"]  # a replica of that name might come: the run will tell
    assert main([*words, "--out", str(tmp_path)]) == 1
    assert "1 of 2 runs failed" in capsys.readouterr().err
    assert [("no replica" in row["error"], bool(row["arrived"])) for row in rows_of(tmp_path)] == [
        (True, False),
        (False, True),
    ]


def test_another_grid_does_not_mix_unless_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *SMALL, "--workers", "1", "--no-plots", "--out", str(tmp_path)]
    assert main(words) == 0
    before = files_of(tmp_path)
    assert main([*words, "--seed", "1"]) == 2
    assert "another grid" in capsys.readouterr().err
    assert files_of(tmp_path) == before
    assert main([*words, "--seed", "1", "--mix"]) == 0


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "nothing varies"),
        (["--rate", ""], "rate"),
        (["--rate", "2,,3"], "neither a number"),
        (["--rate", "-1"], "rate must be positive"),
        (["--rate", "nan"], "finite"),
        (["--rate", "5:1:1"], "no values"),
        (["--rate", "0.000001:99999:0.0000001"], "too many"),
        (["--seed", "1.5"], "whole number"),
        (["--seed", "99999999999999999999"], "below"),
        (["--model", "nope", "--hardware", "l20"], "no model 'nope'"),
        (["--model", "qwen3-8b", "--hardware", "abacus"], "no hardware 'abacus'"),
        (["--model", "qwen2-72b", "--hardware", "l20"], "does not fit"),
        (["--model", "qwen3-8b", "--hardware", "l20", "--tp", "3"], "tp 3"),
        (["--model", "qwen3-8b"], "--hardware"),
        (["--layout", "sideways"], "sideways"),
        (["--layout", "1:2", "--replicas", "4"], "cannot be 1:2"),
        (["--link-rate", "-5"], "must not be negative"),
        (["--slo", "5"], "TTFT:TPOT"),
        (["--slo", "5:nan"], "slo.tpot_s"),
        (["--data", "mybook"], "mybook"),
        (["--trace", "/nowhere.csv"], "/nowhere.csv"),
        (["--trace", "{file}"], "no column TIMESTAMP"),
        (["--trace", "{binary}"], "binary"),
        (["--vary", "scheduling.max_chunk=512"], "list of values"),
        (["--vary", "scheduling.nothing=[1]"], "nothing"),
        (["--vary", "scheduling.max_chunk=[]"], "list of values"),
        (["--vary", "scheduling.max_chunk"], "not of the form"),
        (["--rate", "1:9999:0.1", "--seed", "0:99:1"], "are the most"),
        (["--rate", "2", "--share", "2"], "--share"),
        (["--rate", "2", "--workers", "0"], "workers"),
        (["--rate", "2", "--out", "{file}/sub"], "Not a directory"),
        (["--rate", "2", "--out", "{taken}"], "sweep.csv cannot be written"),
        (["--seed", "1", "--vary", "simulate.seed=[2]"], "--seed and vary simulate.seed are the same setting"),
        (["--slo", "5:0.1", "--vary", "slo.ttft_s=[2]"], "--slo and vary slo.ttft_s are the same setting"),
        (["--rate", "2", "--config", "/nowhere.toml"], "/nowhere.toml"),
        (["--wrong", "2"], "unrecognized"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2_and_leaves_nothing(
    words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a,b\n1,2\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "taken" / "sweep.csv").mkdir(parents=True)
    before = sorted(tmp_path.rglob("*"))
    places = {name: tmp_path / name for name in ("file", "binary", "taken")}
    given = [word.format(**places) for word in words]
    assert main(["sweep", "--out", str(tmp_path / "out"), *given]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert says in said.err
    assert said.err.count("\n") == 1
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(("library", "option"), [("pyarrow", "--no-parquet"), ("matplotlib", "--no-plots")])
def test_without_an_optional_library_the_extra_is_named(
    library: str, option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == library else find(name))
    words = ["sweep", "--rate", "2", "--duration", "1", "--workers", "1", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    said = capsys.readouterr().err
    assert "phaseserve[sweep]" in said
    assert option in said
    assert not (tmp_path / "out").exists()
    assert main([*words, option]) == 0


def test_files_of_one_name_in_two_folders_are_two_lines_and_two_pictures() -> None:
    rows = [Row(key=path, labels={"trace": path, "tp": 1}, figures={}) for path in ("/a/x.csv", "/b/x.csv", "/b/y.csv")]
    assert [name for name, _ in _lines(("trace", "tp"), rows[1:])] == ["x.csv, tp 1", "y.csv, tp 1"]
    assert [(name, len(some)) for name, some in _lines(("trace",), rows)] == [(str(r["trace"]), 1) for r in rows]
    taken: set[str] = set()
    assert len({_suffix({"trace": str(row["trace"])}, taken) for row in rows}) == 3


def test_pictures_tell_values_with_their_units() -> None:
    told = {"link-rate": "10", "slo": "5:0.1", "duration": "30", "replicas": "4", "tp": "2", "layout": "1:3"}
    assert [_word(name, value) for name, value in told.items()] == [
        "links of 10 Gbit/s", "TTFT 5 s, TPOT 0.1 s", "30 s of arrivals", "4 replicas", "tp 2", "1:3",
    ]  # fmt: skip


def test_models_with_as_many_kv_bytes_are_not_one_cell_of_the_map() -> None:
    rows = [
        Row(
            key=f"{model}-{layout}",
            labels={"model": model, "layout": layout, "link_gbit_s": 10.0, "kv_bytes_per_token": 131_072},
            figures={"usual.attained": attained},
        )
        for model, layouts in {"llama-3-8b": (0.9, 0.5), "qwen3-30b-a3b": (0.2, 0.6)}.items()
        for layout, attained in zip(("phased", "1:1"), layouts, strict=True)
    ]
    cells = _cells(rows, 0.9, scanned=False, models=True)
    assert [(cell.row, cell.best, cell.word) for cell in cells] == [
        ("llama-3-8b", "phased", "90%"),
        ("qwen3-30b-a3b", "1:1", "60%"),
    ]
    assert [cell.row for cell in _cells(rows[:2], 0.9, scanned=False, models=False)] == [""]


def test_values_are_lists_and_ranges_and_words() -> None:
    assert values_of("rate", "1,2:3:0.5,2") == (1.0, 2.0, 2.5, 3.0)
    assert values_of("rate", "0.1:0.5:0.1") == (0.1, 0.2, 0.3, 0.4, 0.5)
    assert values_of("seed", [0, "3:5:1"]) == (0, 3, 4, 5)
    assert values_of("layout", "phased, sarathi(512),1:3") == ("phased", "sarathi(512)", "1:3")
    assert parse_variation("a.b = ['x', 'y']") == ("a.b", ["x", "y"])
    with pytest.raises(ConfigError, match="empty"):
        values_of("rate", [])


GRID = ("--layout", "phased,colocated,1:1", "--replicas", "2", "--rate", "2:8:2", "--duration", "8", "--workers", "2")


def started(out: Path) -> subprocess.Popen[bytes]:
    """A sweep in a process of its own, that has written a row or more."""
    argv = [sys.executable, "-P", "-m", "cli", "sweep", *GRID, "--out", str(out)]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, start_new_session=True)
    until = time.monotonic() + 60.0
    store = out / "rows.jsonl"
    while not store.exists() or store.read_bytes().count(b"\n") < 2:
        assert process.poll() is None
        assert time.monotonic() < until
        time.sleep(0.01)
    return process


def children_of(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.system
@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_sweep_that_was_ended_leaves_no_process_and_goes_on_to_the_same_result(
    how: signal.Signals, tmp_path: Path
) -> None:
    process = started(tmp_path / "cut")
    workers = children_of(process.pid)
    assert workers
    if how is signal.SIGINT:
        os.killpg(process.pid, how)  # as a terminal does
    else:
        process.send_signal(how)
    _, said = process.communicate(timeout=20.0)
    assert process.returncode == {signal.SIGKILL: -9, signal.SIGTERM: 143, signal.SIGINT: 130}[how]
    if how is not signal.SIGKILL:
        assert b"the same command goes on" in said
        assert b"Traceback" not in said
    until = time.monotonic() + 20.0
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < until, "a worker outlived its parent"
        time.sleep(0.05)
    done = (tmp_path / "cut" / "rows.jsonl").read_bytes().count(b"\n") - 1
    assert done < 12, "it was over before it was ended"
    assert main(["sweep", *GRID, "--out", str(tmp_path / "cut")]) == 0
    assert main(["sweep", *GRID, "--out", str(tmp_path / "whole")]) == 0
    assert files_of(tmp_path / "cut") == files_of(tmp_path / "whole")
    store = (tmp_path / "cut" / "rows.jsonl").read_bytes()
    assert store.count(b"\n") == 13, "nothing was computed twice"
