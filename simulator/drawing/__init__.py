"""Pictures of runs and grids, as PNG bytes: the same values give the same bytes.

matplotlib is an optional back end: it is imported when a picture is drawn, and `missing()` says beforehand why none
can be. Colours are Okabe and Ito's, which colour-blind eyes tell apart; every line has a marker and a dash of its own
and every area a hatch, so that print in grey does too.
"""

from simulator.drawing.attainment import draw_attainment
from simulator.drawing.course import Mark, draw_course
from simulator.drawing.crossover import Cell, draw_crossover
from simulator.drawing.lines import Line, draw_lines
from simulator.drawing.pareto import Trail, TrailPoint, draw_pareto
from simulator.drawing.phases import draw_phases
from simulator.drawing.style import missing, write_picture

__all__ = [
    "Cell",
    "Line",
    "Mark",
    "Trail",
    "TrailPoint",
    "draw_attainment",
    "draw_course",
    "draw_crossover",
    "draw_lines",
    "draw_pareto",
    "draw_phases",
    "missing",
    "write_picture",
]
