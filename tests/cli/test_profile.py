"""`phaseserve profile` from its command line to its file, on an engine that sleeps for known times."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from cli import profile_neighbours
from cli.main import main
from contracts.errors import Unavailable
from simulator.cost import Fitted
from simulator.cost_file import read_cost_file

COST = "replica.fake.cost={a0 = 0.0005, a1 = 2e-6, b0 = 0.0, b1 = 0.0, b2 = 0.0, b3 = 1e-5}"
QUICK = ["profile", "--engine", "fake", "--set", COST, "--repeats", "1", "--decodes", "4"]


def test_what_steps_cost_is_found_and_simulated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "cost.json"
    assert main([*QUICK, "--out", str(path)]) == 0
    said = capsys.readouterr().out
    assert "95th percentile" in said
    found = read_cost_file(path)
    assert isinstance(found.cost, Fitted)
    assert found.cost.a0 >= 0.0004
    assert found.crowded is None
    assert found.num_blocks == 2048
    assert main(["simulate", "--mixed", "1", "--cost-file", str(path), "--rate", "2", "--duration", "5"]) == 0
    assert [entry.name for entry in tmp_path.iterdir()] == ["cost.json"]


@pytest.mark.slow
def test_a_neighbour_computes_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "cost.json"
    assert main([*QUICK, "--neighbours", "1", "--kind", "table", "--out", str(path)]) == 0
    found = read_cost_file(path)
    assert found.crowded is not None
    assert found.crowded_residuals is not None


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--repeats", "0"], "--repeats must be at least 1"),
        (["--neighbours", "-1"], "--neighbours must be at least 0"),
        (["--decodes", "1"], "--decodes must be at least 2"),
        (["--out", "/nowhere/cost.json"], "there is no folder /nowhere"),
        (["--out", "/"], "cannot be written"),
        (["--repeats", "six"], "invalid int value"),
        (["--set", "replica.fake.num_blocks=2"], "no room for a profile"),
        (["--set", "engine.colour=red"], "colour"),
    ],
)
def test_what_is_wrong_is_said_before_anything_runs(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*QUICK, *words]) == 2
    said = capsys.readouterr().err
    assert says in said
    assert said.count("\n") == 1


def test_a_neighbour_that_hangs_while_it_loads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_neighbours, "_READY_S", 0.3)
    hangs = [sys.executable, "-c", "import time; time.sleep(60)"]
    monkeypatch.setattr(profile_neighbours, "own_command", lambda *_: hangs)
    with profile_neighbours.Neighbours([], 1) as neighbours, pytest.raises(Unavailable, match="was not within"):
        neighbours.wait_ready()
