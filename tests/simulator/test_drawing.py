"""Pictures: the same bytes each time, nothing drawn of nothing, one clear line without matplotlib."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from contracts.errors import ConfigError
from contracts.phase import Phase
from simulator.drawing import (
    Cell,
    Line,
    Trail,
    TrailPoint,
    draw_attainment,
    draw_crossover,
    draw_lines,
    draw_pareto,
    draw_phases,
    missing,
    write_picture,
)
from simulator.drawing.attainment import _left
from simulator.drawing.crossover import _bands
from simulator.drawing.pareto import front
from simulator.drawing.style import looks, spread
from simulator.timeline import Span

PNG = b"\x89PNG\r\n\x1a\n"
LINES = (
    Line(name="phased", points=((1.0, 1.0), (2.0, 0.8), (3.0, 0.95), (4.0, 0.1))),
    Line(name="a rule", points=((1.0, 0.5), (4.0, 0.4)), low=(0.4, 0.3), high=(0.6, 0.5)),
)
CELLS = tuple(
    Cell(link_bytes_per_s=rate, kv_bytes_per_token=kv, best="phased" if rate < kv * 1e3 else "disaggregated",
         word="7", row="a model")
    for rate in (1e8, 1e9) for kv in (7e4, 1.6e6)
)  # fmt: skip
PICTURES: dict[str, Callable[[bool], bytes]] = {
    "attainment": lambda some: draw_attainment(LINES if some else (), title="t"),
    "lines": lambda some: draw_lines(LINES if some else (), title="t", x_label="x (s)", y_label="y (s)", log_x=True),
    "pareto": lambda some: draw_pareto(
        [Trail("auto", (TrailPoint(0.1, 0.02, "1/s"), TrailPoint(1.0, 0.0)))] if some else [],
        title="t", ttft_target_s=5.0, tpot_target_s=0.1,
    ),
    "crossover": lambda some: draw_crossover(CELLS if some else (), title="t", predicted=((7e4, 2e8), (1.6e6, 5e8))),
    "phases": lambda some: draw_phases({"a-0": (Span(0.0, 1.0, Phase.MIXED),) if some else ()}, title="t"),
}  # fmt: skip


def test_rows_of_a_map_with_as_many_kv_bytes_share_their_place() -> None:
    def cell(kv: float, row: str) -> Cell:
        return Cell(link_bytes_per_s=1e9, kv_bytes_per_token=kv, best="phased", row=row)

    bands = _bands([cell(1e3, "a"), cell(4e3, "b"), cell(4e3, "c"), cell(4e3, "b")])
    assert list(bands) == [(1e3, "a"), (4e3, "b"), (4e3, "c")]
    borders = [border for band in bands.values() for border in band]
    assert borders == pytest.approx([5e2, 2e3, 2e3, 4e3, 4e3, 8e3])


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_repeats_and_of_nothing_there_is_none(name: str) -> None:
    first = PICTURES[name](True)
    assert first.startswith(PNG)
    assert PICTURES[name](True) == first
    with pytest.raises(ConfigError, match="nothing to draw"):
        PICTURES[name](False)


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert "phaseserve[sweep]" in str(missing())
    with pytest.raises(ConfigError, match=r"phaseserve\[sweep\]"):
        draw_attainment(LINES, title="t")


def test_a_picture_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    write_picture(tmp_path / "a.png", PNG)
    assert (tmp_path / "a.png").read_bytes() == PNG
    assert [path.name for path in tmp_path.iterdir()] == ["a.png"]
    with pytest.raises(ConfigError, match=r"nowhere.*No such file"):
        write_picture(tmp_path / "nowhere" / "a.png", PNG)


def test_the_front_holds_what_nothing_beats() -> None:
    points = [TrailPoint(1.0, 3.0), TrailPoint(2.0, 2.0), TrailPoint(2.5, 2.5), TrailPoint(3.0, 1.0)]
    assert front(points) == {points[0], points[1], points[3]}


@pytest.mark.parametrize("places", [[0.0] * 5, [0.97] * 5, [0.2, 0.21, 0.9, 0.95], [0.5]])
def test_labels_are_apart_in_order_and_inside(places: list[float]) -> None:
    found = spread(places, 0.1)
    assert all(late - early > 0.0999 for early, late in pairwise(found))
    assert found[-1] <= 0.97 + 1e-9
    assert found[0] > -1e-9


def test_no_two_of_eight_series_look_alike_and_layouts_keep_their_look() -> None:
    names = ["phased", *"abcdefg"]
    found = looks(names)
    assert len({(look.colour, look.marker, look.dash) for look in found.values()}) == len(names)
    assert found["phased"] == looks(["x", "phased"])["phased"]


def test_names_are_no_formulas() -> None:
    line = Line(name="a$\\frac$.csv", points=((1.0, 1.0), (2.0, 3.0)))
    assert draw_lines((line,), title="$\\x$", x_label="x (s)", y_label="y (s)").startswith(PNG)


def test_a_goodput_between_two_rates_moves_the_ring() -> None:
    assert draw_attainment(LINES, title="t", goodputs={"phased": 3.2}) != draw_attainment(LINES, title="t")


@pytest.mark.parametrize(("rates", "left"), [((2.0, 4.0), 1.9), ((1.0, 4.0), 0.0), ((3.0,), 0.0)])
def test_an_axis_of_high_rates_does_not_begin_at_none(rates: tuple[float, ...], left: float) -> None:
    assert _left(rates) == pytest.approx(left)
