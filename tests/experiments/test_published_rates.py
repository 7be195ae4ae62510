"""The roofline stays near what was published, with the constants in the files."""

from __future__ import annotations

import pytest

from experiments.published_rates.__main__ import report
from experiments.published_rates.figures import LOOSE, Figure, all_figures
from experiments.published_rates.picture import PICTURE, draw, lines_of

FIGURES = all_figures()


@pytest.mark.parametrize("figure", [one for one in FIGURES if one.use != LOOSE], ids=lambda one: one.name)
def test_what_was_fitted_or_checked_agrees(figure: Figure) -> None:
    assert abs(figure.residual) <= 0.15


def test_loose_ones_are_of_the_right_order() -> None:
    assert all(0.3 < one.ours / one.published < 3.0 for one in FIGURES if one.use == LOOSE)


def test_a_bound_is_met_on_its_side_only() -> None:
    def residual(ours: float, bound: str) -> float:
        return Figure(what="", source="", unit="", published=10.0, ours=ours, use=LOOSE, bound=bound).residual

    assert residual(5.0, "below") == 0.0
    assert residual(5.0, "above") == pytest.approx(-0.5)
    assert residual(15.0, "") == pytest.approx(0.5)


def test_the_report_names_the_worst() -> None:
    lines = report(FIGURES, "abc", drawn=False)
    assert sum(line.startswith("| ") for line in lines) == len(FIGURES) + 2
    assert any("farthest off" in line for line in lines)


def test_every_figure_is_in_the_picture_under_its_source_and_set_up_and_the_report_has_it() -> None:
    pytest.importorskip("matplotlib", reason="the picture needs matplotlib")
    lines = lines_of(FIGURES)
    assert [line for line in lines if isinstance(line, Figure)] == FIGURES
    titles = [line for line in lines if isinstance(line, str)]
    assert len(titles) == len({(one.source, one.where) for one in FIGURES})
    assert "DCP (OSDI'26): Qwen2.5-32B on 4 A100-40GB, PP4" in titles
    assert draw(FIGURES[:3]).startswith(b"\x89PNG")
    shown, hidden = ("\n".join(report(FIGURES, "abc", drawn=drawn)) for drawn in (True, False))
    assert f"]({PICTURE})" in shown
    assert PICTURE not in hidden
