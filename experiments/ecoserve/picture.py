"""Attainment against rate of every system on one set-up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from experiments.ecoserve.scan import Found
from simulator.drawing import Line, draw_attainment, missing, write_picture

LINES = 6


def draw(found: Iterable[Found], title: str, path: Path) -> bool:
    """By EcoServe's clock, the first `LINES` of them. False, and nothing drawn, without matplotlib."""
    lines = [Line(name=one.system, points=tuple((p[0], p[2]) for p in one.points)) for one in found]
    if missing() is not None or not lines:
        return False
    write_picture(path, draw_attainment(lines[:LINES], title=title, note="EcoServe's clock, one seed"))
    return True
