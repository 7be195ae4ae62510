"""The pictures of a sweep: which lines go into which, and where the best layout changes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from cli.sweep_axes import KV_BYTES, Label, label_of
from contracts.request import Slo
from simulator.drawing import Cell, Line, Trail, TrailPoint, draw_attainment, draw_crossover, draw_pareto
from simulator.drawing.style import ALIKE, NONE
from simulator.grid import Row, goodputs
from simulator.links import BYTES_PER_GBIT

MAX_LINES = 8
MAX_PICTURES = 24
_NEAR = 0.01
"""Layouts are alike where the best one is better by less than this share."""

Names = tuple[str, ...]


def pictures_of(
    axes: Mapping[str, tuple[Label, ...]], rows: Sequence[Row], share: float, slo: Slo | None = None
) -> dict[str, bytes]:
    """By file name. Rows that differ in the seed only are one point, with a band from the least to the most. `slo`: the
    targets of all rows, if they have the same."""
    varied = [name for name, values in axes.items() if len(values) > 1 and name not in ("rate", "seed")]
    found: dict[str, bytes] = {}
    suffixes: set[str] = set()
    for where, mine, names in _pictures(varied, axes, rows):
        lines = _lines(names, mine)
        suffix, place = _suffix(where, suffixes), ", ".join(_word(name, _short(value)) for name, value in where.items())
        if len(axes.get("rate", ())) > 1:
            title = f"Attainment over the arrival rate{': ' if place else ''}{place}"
            picture = draw_attainment([_attainment(name, some) for name, some in lines], share=share, title=title)
            found[f"attainment{suffix}.png"] = picture
        if any(row.number("usual.tpot_s.p90") > 0.0 and row.number("usual.ttft_s.p90") > 0.0 for row in mine):
            title = f"TTFT against TPOT{': ' if place else ''}{place}"
            trails = [_trail(name, some, with_rate="rate" in axes) for name, some in lines]
            found[f"pareto{suffix}.png"] = draw_pareto(
                trails,
                title=title,
                ttft_target_s=None if slo is None else slo.ttft_s,
                tpot_target_s=None if slo is None else slo.tpot_s,
            )
    if len(axes.get("link-rate", ())) > 1 and len(axes.get("layout", ())) > 1:
        found |= _maps(varied, axes, rows, share)
    return found


def _pictures(
    varied: Sequence[str], axes: Mapping[str, tuple[Label, ...]], rows: Sequence[Row]
) -> Iterator[tuple[dict[str, Label], list[Row], Names]]:
    """What each picture is about, its rows, and the axes that tell its lines apart: all of them where the lines are
    few, else the layout (or the last axis)."""
    inner: Names = tuple(varied)
    if math.prod(len(axes[name]) for name in varied) > MAX_LINES:
        inner = ("layout",) if "layout" in varied else (varied[-1],)
    outer = [name for name in varied if name not in inner]
    for values in itertools.islice(itertools.product(*(axes[name] for name in outer)), MAX_PICTURES):
        where = dict(zip(outer, values, strict=True))
        mine = [row for row in rows if all(row[label_of(name)] == value for name, value in where.items())]
        if mine:
            yield where, mine, inner


def _lines(names: Names, rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    """Rows with the same values of these axes, and what to call them: as short as tells them apart."""
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault(tuple(row[label_of(name)] for name in names), []).append(row)
    for tell in (_short, str):
        called = [", ".join(_word(name, tell(value)) for name, value in zip(names, values, strict=True)) or "all"
                  for values in found]  # fmt: skip
        if len(set(called)) == len(found):
            break
    return list(zip(called, found.values(), strict=True))


def _word(name: str, value: str) -> str:
    """A value of an axis as it is told in a picture, with its unit."""
    match name:
        case "layout" | "model" | "hardware" | "data" | "trace":
            return value
        case "link-rate":
            return f"links of {value} Gbit/s"
        case "slo":
            ttft_s, _, tpot_s = value.partition(":")
            return f"TTFT {ttft_s} s, TPOT {tpot_s} s"
        case "duration":
            return f"{value} s of arrivals"
        case "replicas":
            return f"{value} replicas"
    return f"{label_of(name)} {value}"


def _attainment(name: str, rows: Sequence[Row]) -> Line:
    rates = _by_rate(rows)
    seen = {rate: [row.number("usual.attained") for row in some] for rate, some in rates.items()}
    several = any(len(values) > 1 for values in seen.values())
    return Line(
        name=name,
        points=tuple((rate, sum(values) / len(values)) for rate, values in seen.items()),
        low=tuple(map(min, seen.values())) if several else (),
        high=tuple(map(max, seen.values())) if several else (),
    )


def _trail(name: str, rows: Sequence[Row], *, with_rate: bool) -> Trail:
    rates = _by_rate(rows) if with_rate else {0.0: list(rows)}
    return Trail(
        name,
        tuple(
            TrailPoint(_mean(some, "usual.ttft_s.p90"), _mean(some, "usual.tpot_s.p90"), f"{rate:g}/s" if rate else "")
            for rate, some in rates.items()
        ),
    )


def _maps(
    varied: Sequence[str], axes: Mapping[str, tuple[Label, ...]], rows: Sequence[Row], share: float
) -> dict[str, bytes]:
    """The best layout at each link rate and number of KV bytes, one map for each value of what else varies."""
    outer = [name for name in varied if name not in ("layout", "link-rate", "model")]
    scanned = len(axes.get("rate", ())) > 1
    what = f"goodput at {share:.0%}, requests/s" if scanned else "attainment"
    found: dict[str, bytes] = {}
    suffixes: set[str] = set()
    for values in itertools.islice(itertools.product(*(axes[name] for name in outer)), MAX_PICTURES):
        where = dict(zip(outer, values, strict=True))
        mine = [row for row in rows if all(row[label_of(name)] == value for name, value in where.items())]
        cells = _cells(mine, share, scanned=scanned, models="model" in axes)
        if cells:
            place = "".join(f", {_word(name, _short(value))}" for name, value in where.items())
            found[f"crossover{_suffix(where, suffixes)}.png"] = draw_crossover(
                cells, title=f"Best layout ({what}){place}"
            )
    return found


def _cells(rows: Sequence[Row], share: float, *, scanned: bool, models: bool) -> list[Cell]:
    """Models with as many KV bytes a token are cells of their own."""
    groups: dict[tuple[float, float, str], dict[str, list[Row]]] = {}
    for row in rows:
        model = str(row["model"]) if models else ""
        place = row.number(KV_BYTES), row.number(label_of("link-rate")), model
        groups.setdefault(place, {}).setdefault(str(row["layout"]), []).append(row)
    cells = []
    tell = _short if len({_short(model) for *_, model in groups}) == len({model for *_, model in groups}) else str
    for (kv_bytes, gbit_s, model), layouts in groups.items():
        if gbit_s <= 0.0:
            continue
        scores = {
            name: goodputs(some, (), share)[()].goodput if scanned else _mean(some, "usual.attained")
            for name, some in layouts.items()
        }
        best = max(scores, key=lambda name: scores[name])
        alike = sum(score >= (1.0 - _NEAR) * scores[best] for score in scores.values()) > 1
        cells.append(
            Cell(
                link_bytes_per_s=gbit_s * BYTES_PER_GBIT,
                kv_bytes_per_token=kv_bytes,
                best=NONE if scores[best] <= 0.0 else ALIKE if alike else best,
                word=f"{scores[best]:.3g}" if scanned else f"{scores[best]:.0%}",
                row=tell(model) if models else "",
            )
        )
    return cells


def _by_rate(rows: Sequence[Row]) -> dict[float, list[Row]]:
    found: dict[float, list[Row]] = {}
    for row in rows:
        found.setdefault(row.number("rate"), []).append(row)
    return dict(sorted(found.items()))


def _mean(rows: Sequence[Row], name: str) -> float:
    return sum(row.number(name) for row in rows) / len(rows)


def _suffix(where: Mapping[str, Label], taken: set[str]) -> str:
    """For a file's name; two files in different folders may be called alike."""
    plain = "".join(f"-{re.sub(r'[^A-Za-z0-9.]+', '_', f'{name}_{_short(value)}')}" for name, value in where.items())
    suffix = plain if plain not in taken else f"{plain}-{len(taken) + 1}"
    taken.add(suffix)
    return suffix


def _short(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else Path(str(value)).name
