"""What `experiments.auto` says of its rows."""

from __future__ import annotations

from pathlib import Path

import msgspec

from experiments.auto.fleets import AUTO, static_fleets
from experiments.auto.loads import changing
from experiments.auto.report import COURSE, Changed, Planned, course_name, write_result
from experiments.auto.runs import Scan
from simulator.drawing import missing
from simulator.grid import Row


def _scan(fleet: str, *points: tuple[float, float]) -> Scan:
    return Scan(
        load="azure_llm_2023_code",
        link_gbit=10.0,
        fleet=fleet,
        points=tuple((rate, share, share) for rate, share in points),
    )


def _told(folder: Path, scans: list[Scan], changed: list[Changed]) -> str:
    write_result(folder, scans, changed, Planned(traces=(), changing=()))
    return (folder / "RESULT.md").read_text()


def test_where_no_static_fleet_holds_there_is_no_knee_and_no_ratio_of_goodputs(tmp_path: Path) -> None:
    scans = [_scan("1P:3D", (2.0, 0.5)), _scan("4 mixed", (2.0, 0.8), (3.0, 0.6)), _scan(AUTO, (2.0, 0.8), (3.0, 0.6))]
    text = _told(tmp_path, scans, [])
    assert "| azure_llm_2023_code | 10 | 4 mixed | 0.00 | 0.00 | - | none (2) | 80.0% (80.0%) |" in text
    assert "- azure_llm_2023_code: codellama2-34b on 4 L20 a replica, TTFT 5 s, TPOT 100 ms." in text
    assert "mooncake" not in text
    assert "No knee was found on azure_llm_2023_code" in text
    held = [_scan("4 mixed", (2.0, 0.95), (3.0, 0.85)), _scan(AUTO, (2.0, 0.95), (3.0, 0.75))]
    assert "| 2.50 | 2.25 | 0.900 | 2 |" in _told(tmp_path, held, [])


def test_turns_are_told_of_the_loads_that_ran_and_their_pictures_are_shown(tmp_path: Path) -> None:
    flip, falls, back = changing(tmp_path / "arrivals", 0)
    assert [at_s for at_s, _ in flip.turns] == [120.0, 240.0, 360.0]
    row = Row(key="k", labels={}, figures={"usual.attained": 0.9, "settled": 0.9, "moves": 1})
    fleets = [*static_fleets(4), msgspec.structs.replace(static_fleets(4)[0], name=AUTO)]
    changed = [Changed(load=falls, seed=0, rows=tuple((fleet, row) for fleet in fleets))]
    (tmp_path / course_name(falls)).touch()
    (tmp_path / COURSE).touch()
    text = _told(tmp_path, [], changed)
    assert "links of 25 Gbit/s at the start; from 160 s links of 0.3 Gbit/s." in text
    assert "320 s" not in text
    assert (f"]({course_name(falls)})" in text) is (missing() is None)
    assert f"]({COURSE})" not in text
    assert back.turns[1] == (320.0, "links of 25 Gbit/s")
