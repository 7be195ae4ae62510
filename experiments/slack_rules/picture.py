"""Which rule holds most: the share within both targets of every rule, cut and whole, over all loads and under each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from experiments.slack_rules.choice import figure as attained
from experiments.slack_rules.loads import WHOLE
from simulator.drawing import missing, write_picture
from simulator.drawing.style import FONT, GREY, PALE, darker, figure, png
from simulator.grid import Row

PICTURE = "slack_rules.png"
PERCENT, GOOD = 100.0, 90.0
WIDTH_INCHES, LINE_INCHES, EDGE_INCHES = 16.0, 0.5, 1.2
COLUMNS = 4
APART = 0.19
"""How far the two marks of a rule lie above and below its line, in lines: none covers the other."""
_CUT, _WHOLE = ("#0072B2", "o", "cut at its allowance"), ("#D55E00", "s", "whole")
Shares = Mapping[str, float]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One set of axes: percent by rule, cut and whole."""

    title: str
    cut: Shares
    whole: Shares


def panels(rows: Mapping[str, Sequence[Row]]) -> list[Panel]:
    """The mean over all loads, then each load; of rules that have a run there."""
    loads = dict.fromkeys(str(row["load"]) for same in rows.values() for row in same)
    complete = {rule: same for rule, same in rows.items() if {str(row["load"]) for row in same} == set(loads)}
    found = [_panel("Mean over all loads", complete)]
    for load in loads:
        found.append(_panel(load, {rule: [r for r in same if r["load"] == load] for rule, same in rows.items()}))
    return found


def rules_of(shown: Sequence[Panel]) -> list[str]:
    """From the top: the best, cut or whole, in the mean comes first."""
    known = list(dict.fromkeys(rule for panel in shown for rule in (*panel.cut, *panel.whole)))
    mean = shown[0]
    return sorted(known, key=lambda rule: -max(mean.cut.get(rule, 0.0), mean.whole.get(rule, 0.0)))


def draw_rules(rows: Mapping[str, Sequence[Row]], default: str, path: Path) -> bool:
    """Write the PNG. False, and nothing drawn, without matplotlib or without a run."""
    if missing() is not None or not any(rows.values()):
        return False
    write_picture(path, draw(panels(rows), default))
    return True


def draw(shown: Sequence[Panel], default: str) -> bytes:
    """A PNG. Raises `ConfigError` without matplotlib."""
    rules = rules_of(shown)
    num_rows = -(-len(shown) // COLUMNS)
    with figure(WIDTH_INCHES, EDGE_INCHES + num_rows * (1.3 + LINE_INCHES * len(rules))) as made:
        made.suptitle(
            f"Requests within both targets (TTFT, TPOT), mean of both clocks, by slack rule; default: {_told(default)}"
        )
        grid = made.subplots(num_rows, COLUMNS, sharex=True, sharey=True, squeeze=False)
        places = list(grid.flat)
        for axes, panel in zip(places, shown, strict=False):
            _draw_panel(axes, panel, rules, digits=int(panel is shown[0]))
        for axes in places[len(shown) :]:
            axes.set_axis_off()
        for number, axes in enumerate(places[: len(shown)]):
            if number + COLUMNS >= len(shown):  # nothing below it
                axes.set_xlabel("requests (%)")
                axes.tick_params(labelbottom=True)
        handles = places[0].get_legend_handles_labels()
        made.legend(*handles, loc="outside lower center", ncols=3, frameon=False)
        return png(made)


def _draw_panel(axes: Any, panel: Panel, rules: Sequence[str], digits: int) -> None:
    """Numbers with so many digits behind the point."""
    axes.set_title(panel.title, loc="left", fontsize=FONT)
    axes.set_yticks(range(len(rules)), labels=rules)
    axes.set_ylim(len(rules) - 0.4, -0.6)
    axes.set_xlim(right=103.0)
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")
    axes.axvline(GOOD, color=GREY, linewidth=1.6, linestyle=(0, (6, 3)), zorder=1, label=f"{GOOD:g} %")
    for shares, (colour, marker, name), side in ((panel.cut, _CUT, -APART), (panel.whole, _WHOLE, APART)):
        best = max(shares.values(), default=0.0)
        axes.plot([], [], marker, color=colour, markersize=10, label=name)
        for row, rule in enumerate(rules):
            if rule in shares:
                share = shares[rule]
                _mark(axes, place=row + side, share=share, look=(colour, marker))
                _number(axes, f"{share:.{digits}f}", row + side, share, colour, "bold" if share == best else "normal")


def _mark(axes: Any, *, place: float, share: float, look: tuple[str, str]) -> None:
    """The mark, on a line from nothing."""
    colour, marker = look
    axes.plot([0.0, share], [place, place], color=PALE, linewidth=1.6, zorder=1.5)
    axes.plot([share], [place], marker, color=colour, markersize=9, markeredgecolor="white", zorder=3)


def _number(axes: Any, text: str, place: float, share: float, colour: str, weight: str) -> None:
    """Left of its mark."""
    axes.annotate(text, (share, place), xytext=(-9, 0), textcoords="offset points", ha="right", va="center",
                  color=darker(colour), fontsize=FONT - 4, fontweight=weight, zorder=4,
                  bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.3})  # fmt: skip


def _panel(title: str, rows: Mapping[str, Sequence[Row]]) -> Panel:
    shares = {
        rule: PERCENT * sum(attained(row) for row in same) / len(same) for rule, same in rows.items() if len(same) > 0
    }
    return Panel(
        title=title,
        cut={rule: share for rule, share in shares.items() if not rule.endswith(WHOLE)},
        whole={rule.removesuffix(WHOLE): share for rule, share in shares.items() if rule.endswith(WHOLE)},
    )


def _told(rule: str) -> str:
    return rule if rule.endswith(WHOLE) else f"{rule}, cut"
