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
    for _ in range(2):
        now[0] += 10.0
        shown.step()
    shown.close()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "4 of 10 runs are there already",
        "6 of 10 runs, about 40 s left",
        "6 of 10 runs in 20 s",
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
