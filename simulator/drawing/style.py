"""What all pictures have in common: colours, markers, sizes, labels at the ends of lines, bytes that repeat."""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from contracts.errors import ConfigError
from simulator.files import write_whole

FONT = 15
GREY, PALE = "#595959", "#dddddd"
DPI = 120
_PACKAGE = "matplotlib"
_TOP = 0.97
_RC = {
    "font.family": "DejaVu Sans",
    "font.size": FONT,
    "text.parse_math": False,  # names of files may hold dollars
    "axes.titlesize": FONT + 2,
    "axes.labelsize": FONT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": PALE,
    "xtick.labelsize": FONT - 1,
    "ytick.labelsize": FONT - 1,
    "lines.linewidth": 2.4,
    "lines.markersize": 8,
    "hatch.linewidth": 1.2,
    "figure.constrained_layout.use": True,
}


class Look(msgspec.Struct, frozen=True):
    """How one series looks: colour, marker, dash of its line, hatch of its area."""

    colour: str
    marker: str
    dash: str | tuple[int, tuple[int, ...]]
    hatch: str


ALIKE = "several alike"
"""Where none is better than another."""
NONE = "none"
"""Where none is any good."""
_KNOWN = {
    "colocated": Look("#E69F00", "s", "--", "//"),
    "phased": Look("#009E73", "^", "-.", "\\\\"),
    "disaggregated": Look("#0072B2", "o", ":", ".."),
    "auto": Look("#D55E00", "D", "-", ""),
    ALIKE: Look("#BBBBBB", "h", "-", ""),
    NONE: Look("#F2F2F2", "x", "-", ""),
    "prefill": Look("#E69F00", "s", "--", "//"),
    "decode": Look("#56B4E9", "o", "-", ""),
    "mixed": Look("#CC79A7", "D", ":", "xx"),
}
_OTHERS = (
    Look("#0072B2", "o", "-", ""),
    Look("#D55E00", "D", "--", "//"),
    Look("#009E73", "^", "-.", "\\\\"),
    Look("#CC79A7", "v", ":", "xx"),
    Look("#E69F00", "s", (0, (5, 1)), ".."),
    Look("#56B4E9", "P", (0, (3, 1, 1, 1)), "++"),
    Look("#000000", "X", (0, (1, 1)), "--"),
    Look("#7F6A00", "*", (0, (7, 2, 1, 2)), "oo"),
)


def looks(names: Sequence[str]) -> dict[str, Look]:
    """The look of each: a layout always has its own one, the others take the next that is free."""
    found = {name: _KNOWN[name] for name in names if name in _KNOWN}
    taken = {look.colour for look in found.values()}
    free = [look for look in _OTHERS if look.colour not in taken] or list(_OTHERS)
    for name in names:
        if name not in found:
            found[name] = free[(len(found) - len(taken)) % len(free)]
    return found


def missing() -> str | None:
    """Why no picture can be drawn, or None."""
    if importlib.util.find_spec(_PACKAGE) is None:
        return f"{_PACKAGE} is not installed: pip install 'phaseserve[sweep]'"
    return None


@contextmanager
def figure(width_inches: float = 11.0, height_inches: float = 6.6) -> Iterator[Any]:
    """An empty figure in our style. Raises `ConfigError` without matplotlib."""
    reason = missing()
    if reason is not None:
        raise ConfigError(reason, param="plots")
    with importlib.import_module(_PACKAGE).rc_context(_RC):
        made = importlib.import_module(f"{_PACKAGE}.figure").Figure(figsize=(width_inches, height_inches))
        importlib.import_module(f"{_PACKAGE}.backends.backend_agg").FigureCanvasAgg(made)
        yield made


def png(made: Any) -> bytes:
    """The picture. Nothing of the machine or the hour is in it."""
    content = io.BytesIO()
    made.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()


def plain_log(axis: Any) -> None:
    """Numbers as people write them on a logarithmic axis, as many as it has room for. Call it when all is drawn."""
    low, high = axis.get_view_interval()
    decades = math.log10(high / low)
    subs = (1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if decades < 1.3 else (1.0, 2.0, 5.0) if decades < 3.5 else (1.0,)
    ticks = importlib.import_module(f"{_PACKAGE}.ticker")
    axis.set_major_locator(ticks.LogLocator(subs=subs))
    axis.set_major_formatter(ticks.FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_locator(ticks.NullLocator())


def darker(colour: str) -> str:
    """The same hue, dark enough to read as text on white."""
    parts = [int(colour[place : place + 2], 16) for place in (1, 3, 5)]
    return "#" + "".join(f"{int(0.72 * part):02x}" for part in parts)


def label_ends(axes: Any, ends: Sequence[tuple[str, str, float, float]]) -> None:
    """Names right of the lines' ends, spread so that none covers another. Each: text, colour, x and y of the end."""
    if not ends:
        return
    box = axes.bbox
    gap = 1.35 * FONT * axes.figure.dpi / 72.0 / box.height
    wanted = [(axes.transData.transform((x, y))[1] - box.y0) / box.height for _, _, x, y in ends]
    order = sorted(range(len(ends)), key=lambda number: (wanted[number], -number))
    places = spread([min(_TOP, max(0.0, wanted[number])) for number in order], gap)
    for number, place in zip(order, places, strict=True):
        text, colour, x, y = ends[number]
        axes.annotate(
            text, xy=(x, y), xytext=(1.03, place), textcoords="axes fraction", color=darker(colour), fontsize=FONT - 1,
            fontweight="bold", va="center", annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": colour, "linewidth": 0.9, "shrinkA": 0, "shrinkB": 5,
                        "relpos": (0.0, 0.5)},
        )  # fmt: skip


def spread(places: Sequence[float], gap: float) -> list[float]:
    """Sorted places moved so that neighbours are at least `gap` apart, within 0 to nearly 1 as far as there is room."""
    found: list[float] = []
    for place in places:
        found.append(max(place, found[-1] + gap) if found else place)
    over = found[-1] - _TOP if found else 0.0
    if over > 0.0:
        found[-1] -= over
        for number in range(len(found) - 2, -1, -1):
            found[number] = min(found[number], found[number + 1] - gap)
    return found


def write_picture(path: Path, content: bytes) -> None:
    """All of it or nothing. Raises `ConfigError` when it cannot be written."""
    write_whole(path, content, "plots")
