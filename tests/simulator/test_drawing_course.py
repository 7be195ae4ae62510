"""The picture of attainment over time."""

from __future__ import annotations

import pytest

from contracts.errors import ConfigError
from simulator.drawing import Line, Mark, draw_course, missing

pytestmark = pytest.mark.skipif(missing() is not None, reason="matplotlib is not installed")


def test_the_same_course_is_the_same_picture_and_marks_are_in_it() -> None:
    lines = [Line(name="auto", points=((5.0, 0.5), (15.0, 0.9))), Line(name="best", points=((5.0, 0.8), (15.0, 1.0)))]
    plain = draw_course(lines, title="a run", target=0.9)
    assert plain.startswith(b"\x89PNG")
    assert plain == draw_course(lines, title="a run", target=0.9)
    assert draw_course(lines, [Mark(6.2, "2P 2D")], title="a run", target=0.9) != plain


def test_nothing_to_draw_is_said() -> None:
    with pytest.raises(ConfigError, match="nothing to draw"):
        draw_course([], title="nothing")


def test_turns_and_the_names_of_both_kinds_of_marks_are_in_it() -> None:
    lines, marks, turns = [Line(name="auto", points=((5.0, 0.5), (15.0, 0.9)))], [Mark(6.2, "2P")], [Mark(8.0, "links")]
    turned = draw_course(lines, marks, title="a run", turns=turns)
    assert draw_course(lines, marks, title="a run", turns=turns, marks_name="P: prefill", turns_name="t") != turned
