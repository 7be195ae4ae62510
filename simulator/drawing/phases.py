"""Which phase each replica was in, as one bar each over the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from contracts.errors import ConfigError
from contracts.phase import Phase
from simulator.drawing.style import FONT, GREY, figure, looks, png
from simulator.timeline import Span

MAX_REPLICAS = 32


def draw_phases(spans: Mapping[str, Sequence[Span]], *, title: str, note: str = "") -> bytes:
    """A PNG; white is idle. Beyond `MAX_REPLICAS` replicas the rest is left out, and the picture says so.

    Raises `ConfigError` without a span, or without matplotlib.
    """
    if not any(spans.values()):
        raise ConfigError("there is nothing to draw: no replica ran a step in this stretch", param="timeline")
    shown = list(spans)[:MAX_REPLICAS]
    if len(shown) < len(spans):
        note = f"{len(spans) - len(shown)} more replicas are not shown. {note}".strip()
    look_of = looks([phase.value for phase in Phase])
    with figure(13.0, 2.2 + 0.5 * max(3, len(shown))) as made:
        axes = made.subplots()
        axes.set_title(title, loc="left")
        axes.grid(visible=False, axis="y")
        for phase in Phase:
            look = look_of[phase.value]
            for row, replica_id in enumerate(shown):
                bars = [(s.from_s, s.until_s - s.from_s) for s in spans[replica_id] if s.phase is phase]
                axes.broken_barh(bars, (row - 0.38, 0.76), facecolor=look.colour, hatch=look.hatch,
                                 edgecolor="white", linewidth=0.0)  # fmt: skip
            if any(span.phase is phase for replica_id in shown for span in spans[replica_id]):
                axes.broken_barh([], (0, 0), facecolor=look.colour, hatch=look.hatch, edgecolor="white",
                                 label=phase.value)  # fmt: skip
        axes.set_yticks(range(len(shown)), labels=shown)
        axes.set_ylim(len(shown) - 0.5, -0.5)
        axes.tick_params(axis="y", length=0)
        axes.margins(x=0.0)
        axes.set_xlabel("time in the run (s)")
        made.legend(loc="outside upper right", ncols=3, frameon=False, fontsize=FONT - 1, handlelength=2.4)
        if note:
            made.text(0.995, 0.005, note, ha="right", va="bottom", color=GREY, fontsize=11)
        return png(made)
