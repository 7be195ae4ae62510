"""`phaseserve sweep`: what it becomes, and what it says without being told to."""

from __future__ import annotations

import os
import sys

import pytest

from cli import sweep
from contracts.errors import ConfigError


def test_it_becomes_the_program_with_the_words_that_are_not_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    became: list[tuple[str, list[str]]] = []
    monkeypatch.setattr(os, "execv", lambda path, argv: became.append((path, argv)))
    sweep.run(["--live", "--engine", "fake"])
    assert became == [
        (sys.executable, [sys.executable, "-P", "-m", "experiments.bandwidth_sweep", "--engine", "fake"]),
    ]


def test_nothing_is_started_unasked() -> None:
    with pytest.raises(ConfigError, match="--live"):
        sweep.run(["--engine", "fake"])
