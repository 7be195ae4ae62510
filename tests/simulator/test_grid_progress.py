"""How far a grid is, in words and as a bar: what was there before does not count for the time left."""

from __future__ import annotations

import time

import pytest

from simulator.grid.progress import Bar, Lines, progress_of


def test_lines_say_how_much_is_left(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    shown = progress_of(10, 4)
    assert isinstance(shown, Lines)
    for _ in range(4):
        now[0] += 10.0
        shown.step()
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "4 of 10 runs are there already",
        "6 of 10 runs",
        "8 of 10 runs, about 20 s left",
        "8 of 10 runs in 40 s",
    ]


def test_a_bar_counts_what_was_there_before(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(3, 1)
    bar.step()
    bar.step()
    bar.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "1/3" in captured.err
    assert "3/3" in captured.err


def test_a_bar_guesses_the_time_left_once_three_runs_tell(capsys: pytest.CaptureFixture[str]) -> None:
    bar = Bar(9, 2)
    for _ in range(2):
        bar.step()
    assert "<" not in capsys.readouterr().err  # 00:01<00:05 would be the time so far and the time left
    bar.step()
    bar.close()
    assert "5/9 [00:00<" in capsys.readouterr().err
