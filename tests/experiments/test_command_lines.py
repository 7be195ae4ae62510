"""Command lines of experiments: help says what options do, and neither `--quick` nor an empty store loses a result."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import pytest

from experiments.auto.__main__ import main as auto
from experiments.calibration.__main__ import parse as calibration
from experiments.calibration.__main__ import run as run_calibration
from experiments.crossover.__main__ import main as crossover
from experiments.dynamic_chunk.__main__ import main as dynamic_chunk
from experiments.ecoserve.__main__ import main as ecoserve
from experiments.load.command_line import add_out, out_folder, parser_of
from experiments.scale.__main__ import main as scale
from experiments.slack_rules.__main__ import main as slack_rules
from simulator.exit_status import exit_status

Main = Callable[[Sequence[str]], object]
MAINS: dict[str, Main] = {
    "auto": auto,
    "calibration": calibration,
    "crossover": crossover,
    "dynamic_chunk": dynamic_chunk,
    "ecoserve": ecoserve,
    "scale": scale,
    "slack_rules": slack_rules,
}
LIVE = {"calibration", "scale"}
"""What is measured there is no row of a grid."""


@pytest.mark.parametrize("name", MAINS)
def test_help_has_a_word_on_every_option_and_where_results_go(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        MAINS[name](["--help"])
    assert ended.value.code == 0
    text = capsys.readouterr().out
    assert f"python -m experiments.{name}" in text
    assert text.split("options:")[0].count("\n\n") > 2  # paragraphs of the description are kept
    words = "".join(text.split())  # lines are broken at hyphens too
    assert f"with--quickresults/{name}-quick" in words
    options = re.split(r"\n  (?=-)", text.split("options:")[1])[1:]
    assert len(options) > 3
    for option in options:
        assert re.search(r"(\s{2,}|\n\s+)\w[\w ,.:;-]{3,}", option), option
    if name not in LIVE:
        assert f"(defaultresults/{name}.jsonl)" in words
    if "--traces" in words:
        assert "github.com/Azure/AzurePublicDataset" in words


def test_a_quick_run_does_not_write_over_what_is_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    published = tmp_path / "experiments" / "thing"
    parser = parser_of("thing", "What it does.")
    parser.add_argument("--quick", action="store_true")
    add_out(parser, published, "RESULT.md")
    for words, folder in (
        ([], published),
        (["--quick"], Path("results/thing-quick")),
        (["--quick", "--out", "new/one"], Path("new/one")),
    ):
        assert out_folder(parser, parser.parse_args(words), published) == folder
        assert folder.is_dir()
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as ended:
        out_folder(parser, parser.parse_args(["--out", "file/one"]), published)
    assert ended.value.code == 2
    assert calibration(["--quick"]).out == Path("results/calibration-quick")


@pytest.mark.parametrize(
    ("name", "words", "says"),
    [
        ("auto", ["--replicas", "0"], "--replicas: 0 is not a whole number of at least 1"),
        ("auto", ["--links", "nan"], "--links: nan is not a number above 0"),
        ("auto", ["--traces", "nowhere"], "--traces: there is no nowhere"),
        ("crossover", ["--workers", "-1"], "--workers: -1 is not"),
        ("crossover", ["--seeds", "x"], "--seeds: x is not"),
        ("dynamic_chunk", ["--traces", "nowhere"], "--traces: there is no nowhere"),
        ("ecoserve", ["--nothing"], "unrecognized arguments: --nothing"),
    ],
)
def test_a_wrong_word_is_one_line_and_nothing_is_written(
    name: str, words: list[str], says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        MAINS[name](["--out", str(tmp_path / "out"), "--store", str(tmp_path / "rows.jsonl"), *words])
    assert ended.value.code == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert says in told.err
    assert told.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "main"), [("scale", scale), ("ecoserve", ecoserve), ("slack_rules", slack_rules)])
def test_of_an_empty_store_nothing_is_shown(
    name: str, main: Callable[[Sequence[str]], int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = tmp_path / "RESULT.md"
    result.write_text("what was found\n")
    words = ["--stored", "--store", str(tmp_path / "rows.jsonl"), "--out", str(tmp_path)]
    assert exit_status(f"experiments.{name}", partial(main, words)) == 2
    assert result.read_text() == "what was found\n"
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"experiments.{name}: ")
    assert told[0].endswith("there is nothing to show")


def test_without_live_runs_none_can_be_simulated_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--again", "--out", str(tmp_path / "new")]
    assert exit_status("experiments.calibration", partial(run_calibration, words)) == 2
    assert "there are no live runs in" in capsys.readouterr().err
