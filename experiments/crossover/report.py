"""RESULT.md and predicted.csv of the crossover."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from experiments.crossover.formula import Forecast
from experiments.crossover.picture import PICTURE
from experiments.crossover.simulated import FACTORS, HOPELESS, PICKS, SHARE, Found, crossing
from experiments.crossover.sites import Place
from experiments.load.origin import origin
from simulator.links import BYTES_PER_GBIT

HEAD = """# Crossover: the link rate at which each layout takes over

{origin}

A fleet of {replicas} replicas of one model. `mixed` serves requests whole in chunks (colocated), `alternating` in
phases (phased), pools hand over their KV (disaggregated, best whole-number ratio P:D). Loads are EcoServe's (OSDI'26):
Alpaca (TTFT 1 s), ShareGPT (5 s), LongBench (15 s), TPOT 100 ms; `ShareGPT tight` is 2 s and 50 ms. Tensor parallelism
as published there, else the least that leaves room for 32,768 tokens of KV. Step times: `simulator.deployment`.

`need` is the one-line rule, prefill tokens/s x KV bytes/token of one prefill replica at the load's mean prompt. The
crossovers come from the planner's own closed forms (`scheduling.fleet_capacity`): the least link rate of each host at
which pools carry as many requests/s as the same replicas in the other layout. `never`: not on any link.
"""


def write_csv(path: Path, forecasts: Sequence[Forecast]) -> None:
    """All that is predicted; links in bytes/s, an empty crossover is never."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(Forecast.__struct_fields__)
        for one in forecasts:
            writer.writerow(
                f"{value:.6g}" if isinstance(value, float) else value for value in msgspec.structs.astuple(one)
            )


def write_result(
    path: Path,
    places: Sequence[Place],
    forecasts: Sequence[Forecast],
    found: Sequence[Found],
    replicas: int,
    seeds: int,
    num_picks: int,
) -> None:
    """The whole file, with as much as is known."""
    lines = [HEAD.format(origin=origin("python -m experiments.crossover"), replicas=replicas)]
    lines += _simulated(found, forecasts, seeds, num_picks)
    lines += ["", "## Predicted, all models and hardware", ""]
    lines += _predicted(places, forecasts)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _simulated(found: Sequence[Found], forecasts: Sequence[Forecast], seeds: int, num_picks: int) -> Iterator[str]:
    picks = list(dict.fromkeys(one.pick for one in found))
    yield f"## Formula beside simulator: {len(picks)} of {num_picks} picks done, {seeds} seed(s) each"
    yield ""
    share, least, scanned = f"{100 * SHARE:g} %", f"{100 * HOPELESS:g} %", f"{FACTORS[0]:g} to {FACTORS[-1]:g}"
    yield f"Goodput: the rate at which attainment falls below {share} by EcoServe's clock (TTFT with the switch wait),"
    yield f"on a straight line between two scanned rates ({scanned} times the prediction, ending where less than"
    yield f"{least} are attained). `a..b`: between two scanned links."
    yield ""
    yield (
        "| model | KV | hardware | load | need Gbit/s | pools over mixed: formula | simulated "
        "| over alternating: formula | simulated |"
    )
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for pick in picks:
        one = next(f for f in forecasts if (f.model, f.hardware, f.load) == (pick.model, pick.hardware, pick.load))
        mine = [row for row in found if row.pick == pick]
        yield (
            f"| {one.model} | {one.attention} | {one.hardware} TP{one.tp} | {one.load} "
            f"| {one.need / BYTES_PER_GBIT:.3g} | {_link(one.over_mixed)} | {_between(mine, 'colocated')} "
            f"| {_link(one.over_alternating)} | {_between(mine, 'phased')} |"
        )
    yield ""
    yield from _agreement(found, forecasts)
    yield ""
    yield "| model | hardware | load | layout | link Gbit/s | predicted /s | simulated /s | usual clock /s | ratio |"
    yield "| --- | --- | --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for row in found:
        link = "any" if row.link_gbit is None else f"{row.link_gbit:g}"
        more = ">= " if row.at_least else ""
        ratio = f"{row.predicted / row.goodput:.2f}" if row.goodput else "-"
        yield (
            f"| {row.pick.model} | {row.pick.hardware} | {row.pick.load} | {row.mix} | {link} | {row.predicted:.2f} "
            f"| {more}{row.goodput:.2f} | {row.usual:.2f} | {ratio} |"
        )
    left = [pick for pick in PICKS if pick not in picks]
    if left:
        yield ""
        yield "Not run: " + ", ".join(f"{pick.model} on {pick.hardware} ({pick.load})" for pick in left) + "."


def _agreement(found: Sequence[Found], forecasts: Sequence[Forecast]) -> Iterator[str]:
    """How often the formula lies between the two links of the simulator, and what is known of why it does not."""
    told, agreed, total = [], 0, 0
    for pick in dict.fromkeys(one.pick for one in found):
        one = next(f for f in forecasts if (f.model, f.hardware, f.load) == (pick.model, pick.hardware, pick.load))
        mine = [row for row in found if row.pick == pick]
        for layout, rate in (("colocated", one.over_mixed), ("phased", one.over_alternating)):
            at = crossing(mine, layout)
            total += 1
            if (at is None) == (rate is None) and (
                at is None or rate is None or at[0] <= rate / BYTES_PER_GBIT <= (at[1] or float("inf"))
            ):
                agreed += 1
            else:
                told.append(f"{pick.model} on {pick.hardware} ({pick.load}) over {layout}")
    out = ", ".join(told) or "none"
    yield f"The formula lies within the simulated interval in {agreed} of {total} cases; not: {out}."
    yield "Where it does not, both layouts carry about the same over a wide range of links: the closed forms err by"
    yield "about a sixth for single layouts, and a crossover moves by more than that. Pools on links well below the"
    yield "need carry less than predicted, down to none: the forms take the mean prompt and ask of the decode side only"
    yield "that its link is not full, while long prompts wait for the link longer than the TTFT target."


def _predicted(places: Sequence[Place], forecasts: Sequence[Forecast]) -> Iterator[str]:
    yield "Links in Gbit/s, `over mixed / over alternating`; all numbers in predicted.csv. Each line has the step times"
    yield f"of its model. The map ({PICTURE}) has those of CodeLlama2-34B in all rows and varies only the bytes of KV"
    yield "per token: a row that is named after another model has as much KV as that, not its steps, and its crossover"
    yield "is not that of the table."
    yield ""
    yield f"![layout that carries most, over link rate and KV per token]({PICTURE})"
    yield ""
    loads = list(dict.fromkeys(one.load for one in forecasts))
    yield "| model | KV, KiB/token | hardware | need (ShareGPT) | " + " | ".join(loads) + " |"
    yield "| --- | --- | --- | ---: | " + " | ".join("---:" for _ in loads) + " |"
    for there in places:
        mine = {one.load: one for one in forecasts if (one.model, one.hardware) == (there.model, there.hardware)}
        if not mine:
            continue
        one = mine["ShareGPT"]
        cells = [f"{_link(mine[load].over_mixed)} / {_link(mine[load].over_alternating)}" for load in loads]
        yield (
            f"| {one.model} | {one.attention} {one.kv_bytes_per_token / 1024:.3g} | {one.hardware} TP{one.tp} "
            f"| {one.need / BYTES_PER_GBIT:.3g} | " + " | ".join(cells) + " |"
        )
    out = [there for there in places if there.deployment is None]
    yield ""
    yield "Held by no node: " + ", ".join(f"{there.model} on {there.hardware}" for there in out) + "."
    counts = [sum(one.over_mixed is not None for one in forecasts if one.load == load) for load in loads]
    each = len(forecasts) // len(loads)
    told = ", ".join(f"{load} {count}" for load, count in zip(loads, counts, strict=True))
    yield f"Pools overtake `mixed` on some link, of {each} places: {told}."


def _link(rate: float | None) -> str:
    if rate is None:
        return "never"
    return "any" if rate == 0.0 else f"{rate / BYTES_PER_GBIT:.3g}"


def _between(found: Sequence[Found], layout: str) -> str:
    at = crossing(found, layout)
    if at is None:
        return "never"
    below, above = at
    return f"< {above:g}" if below == 0.0 else f"{below:g}..{above:g}"
