"""Attainment over time of `auto` beside the best static fleet, with its changes of roles."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from contracts.phase import Role
from experiments.auto.fleets import AUTO, Fleet, auto_fleet
from experiments.auto.loads import Load
from experiments.auto.report import COURSE, Changed, course_name, knees
from experiments.auto.runs import Scan
from simulator.drawing import Line, Mark, draw_course, missing, write_picture
from simulator.grid import Row

TOGETHER_S = 8.0
"""Changes with no longer pause between them are one mark."""
SHORT = {Role.ALTERNATING: "A", Role.MIXED: "M", Role.PREFILL: "P", Role.DECODE: "D"}
MARKS = f"{AUTO}'s roles from then on: " + ", ".join(f"{letter} {role.value}" for role, letter in SHORT.items())
TURNS = "load or links change"


def draw_changed(folder: Path, changed: Changed) -> None:
    """One picture for each load that changes (of its first seed)."""
    rows = {fleet.name: row for fleet, row in changed.rows}
    if changed.seed == 0 and missing() is None and not any(row.error for row in rows.values()):
        title = f"{changed.load.name}: {changed.load.setting}"
        _draw(folder / course_name(changed.load), title, rows, changed.best(), changed.load)


def draw_scans(folder: Path, scans: Sequence[Scan]) -> None:
    """The first trace over the first link, at the knee of the best static fleet."""
    knee = knees(scans)[0]
    rows = {scan.fleet: row for scan in (knee.best, knee.auto) for row in scan.rows if row.number("rate") == knee.rate}
    if missing() is None and len(rows) == 2:
        title = f"{knee.load}, {knee.rate:g} requests/s, {knee.link_gbit:g} Gbit/s"
        _draw(folder / COURSE, title, rows, knee.best.fleet)


def _draw(path: Path, title: str, rows: dict[str, Row], best: str, load: Load | None = None) -> None:
    lines = [Line(name=name, points=_points(rows[name])) for name in (best, AUTO)]
    start = auto_fleet(sum(1 for _ in _first_roles(rows[AUTO])))
    turns = [Mark(at_s, word) for at_s, word in load.turns] if load else []
    picture = draw_course(
        lines,
        _marks(rows[AUTO], start),
        title=title,
        target=0.9,
        turns=turns,
        marks_name=MARKS,
        turns_name=TURNS,
    )
    write_picture(path, picture)


def _points(row: Row) -> tuple[tuple[float, float], ...]:
    """Seconds (middle of the window) and share, of windows with arrivals."""
    windows = json.loads(str(row["windows"]))
    width = windows[1][0] - windows[0][0] if len(windows) > 1 else 0.0
    return tuple((at + width / 2, attained / arrived) for at, arrived, attained in windows if arrived)


def _first_roles(row: Row) -> dict[str, str]:
    found: dict[str, str] = {}
    for _, replica_id, role in json.loads(str(row["changes"])):
        found.setdefault(replica_id, role)
    return found


def _marks(row: Row, start: Fleet) -> list[Mark]:
    """One for each group of changes: the mix after it."""
    roles = _first_roles(row)
    assert len(roles) == start.mix.total
    groups: list[tuple[float, float, str]] = []
    for at, replica_id, role in json.loads(str(row["changes"])):
        if roles[replica_id] == role:
            continue
        roles[replica_id] = role
        counts = Counter(roles.values())
        word = " ".join(f"{counts[r.value]}{SHORT[r]}" for r in Role if counts[r.value])
        if groups and at - groups[-1][1] <= TOGETHER_S:
            groups[-1] = (groups[-1][0], at, word)
        else:
            groups.append((at, at, word))
    return [Mark(began, word) for began, _, word in groups]
