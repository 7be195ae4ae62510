"""`phaseserve sweep`: no room is left out, what a link cannot change is run once, bounds are told as bounds."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest

from cli.main import main
from simulator.grid.figures import figures_of
from simulator.layouts import laid_out
from simulator.run import simulate
from simulator.scenarios import small

NO_ROOM = ["--model", "llama-30b", "--hardware", "rtx-5090", "--tp", "4"]
TRAFFIC = {"kv_bytes", "network_busy", "events"}
"""Probes of a link are traffic too, and how long they take follows from its rate."""


def rows_of(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_a_grid_leaves_out_what_has_no_room(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["sweep", *NO_ROOM, "--vary", "simulate.workload.max_tokens=[256, 4096]", "--duration", "2", "--no-plots"]
    assert main([*words, "--workers", "1", "--out", str(tmp_path), "--leave-out"]) == 0
    assert "no replica has room" in capsys.readouterr().err
    rows = rows_of(tmp_path / "sweep.csv")
    assert [row["simulate.workload.max_tokens"] for row in rows] == ["256"]


def test_layouts_that_hand_nothing_over_run_once_for_all_link_rates(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["sweep", "--layout", "phased,1:1", "--replicas", "2", "--link-rate", "1,10", "--rate", "2,4"]
    words += ["--duration", "2", "--workers", "1", "--no-plots", "--out", str(tmp_path)]
    assert main(words) == 0
    told = capsys.readouterr()
    assert "6 runs" in told.err
    assert ">=4" in told.out
    assert "Goodput: the highest scanned rate, in requests/s, with 90 %" in told.out
    assert (tmp_path / "rows.jsonl").read_bytes().count(b"\n") == 1 + 6
    rows = rows_of(tmp_path / "sweep.csv")
    assert [row["link_gbit_s"] for row in rows if row["layout"] == "phased"] == ["1.0", "1.0", "10.0", "10.0"]
    found = rows_of(tmp_path / "goodput.csv")
    assert len(found) == 4
    assert {row["goodput_is_bound"] for row in found if row["layout"] == "phased"} == {"True"}
    assert main(words) == 0
    assert "6 of 6 runs are there already" in capsys.readouterr().err


@pytest.mark.parametrize("layout", ["phased", "colocated", "ecoserve_paper"])
def test_the_link_rate_changes_nothing_where_nothing_is_handed_over(layout: str) -> None:
    reports = [
        simulate(laid_out(small(mixed=2, rate=8.0, duration_s=4.0, link_bytes_per_s=rate), layout))
        for rate in (1e8, 1e10)
    ]
    thin, wide = ({name: value for name, value in figures_of(one).items() if name not in TRAFFIC} for one in reports)
    assert thin == wide
