"""Attainment against rate of every system on one set-up."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from experiments.ecoserve.scan import Found
from experiments.ecoserve.tables import ECOSERVE
from simulator.drawing import Line, draw_attainment, missing, write_picture

SHARE = 0.9


def draw(found: Iterable[Found], title: str, seeds: int, path: Path) -> bool:
    """By EcoServe's clock, with the goodputs of the tables. False, and nothing drawn, without matplotlib."""
    scanned = [one for one in found if one.points]
    if missing() is not None or not scanned:
        return False
    lines = [Line(name=one.system, points=tuple((p[0], p[ECOSERVE]) for p in one.points)) for one in scanned]
    goodputs = {one.system: one.goodput(SHARE, ECOSERVE)[0] for one in scanned}
    note = f"EcoServe's clock, {seeds} seed{'s' if seeds > 1 else ''}"
    write_picture(path, draw_attainment(lines, share=SHARE, title=title, note=note, goodputs=goodputs))
    return True
