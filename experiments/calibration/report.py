"""RESULT.md and its picture."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import fmean

from contracts.errors import ConfigError
from experiments.calibration.compare import FIGURES, GOAL, SHARES, Cell, around, within
from experiments.calibration.live import IDLE_OUTPUT, IDLE_PROMPT, Record
from experiments.calibration.workload import OUTPUT_TOKENS, PROMPT_TOKENS
from experiments.load.machine import describe_machine
from experiments.load.origin import commit
from scheduling.step_shape import StepShape
from simulator.cost_file import CostFile
from simulator.drawing import missing, write_picture
from simulator.drawing.style import GREY, figure, looks, plain_log, png
from simulator.fitting import Residuals

FITTED, TABLE, SLEEP = "fitted", "table", "sleep"
_ALONE_CORES = 0.15
_LAYOUTS = {"alternating": "phased", "mixed": "colocated", "1p1d": "disaggregated"}
"""As tables and picture name them, and the layout that each looks like in pictures."""
PICTURE = "calibration.png"


def write_report(
    path: Path,
    record: Record,
    cost: CostFile,
    found: Mapping[str, Sequence[Cell]],
    command: str,
    took_s: float,
    *,
    drawn: bool = False,
) -> None:
    """All that was found, as Markdown, by what steps were said to cost: the predictor, a table, sleeping engines. With
    the picture beside it if that was `drawn`."""
    lines = [
        "# Live system and simulator under the same requests",
        "",
        f"`{command}`, {datetime.now(UTC).date().isoformat()}, commit {commit()}, {took_s:.0f} s.",
        f"{describe_machine()}; torch {version('torch')}, phaseserve {version('phaseserve')}.",
        "",
        *_setting(record),
        *_company(record),
        *(["", f"![quantiles, live across, simulated up]({PICTURE})"] if drawn else []),
        "",
        "## The step-time predictor, fitted to the profile",
        "",
        *_part(record, found[FITTED]),
        "## A table over tokens, from the same profile",
        "",
        *_part(record, found[TABLE]),
        *_asleep(found.get(SLEEP, [])),
        "## What the simulator was told",
        "",
        f"Profile: {cost.about}.",
        "",
    ]
    for kind in (FITTED, TABLE):
        one = cost.refitted(kind)
        lines.append(f"- {kind}, alone: {_fit(one.residuals)}")
        if one.crowded_residuals is not None:
            lines.append(f"- {kind}, beside a busy neighbour: {_fit(one.crowded_residuals)}")
    lines += [f"- {words}" for words in _told(record, cost)]
    lines += _learnt(record, cost)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _part(record: Record, found: Sequence[Cell]) -> list[str]:
    good, every = within(found)
    counts = ", ".join(f"{name} {share}" for name, share in _by_figure(found))
    return [
        f"**{good} of {every} quantiles are within {GOAL:.0%}** ({counts});",
        f"the mean of all errors without their sign is {_mean_error(found):.1%}.",
        "",
        *_table(found),
        "",
        *_honest(record, found),
        "",
    ]


def _setting(record: Record) -> list[str]:
    prompt, output = (f"{low} to {high}" for low, high in (PROMPT_TOKENS, OUTPUT_TOKENS))
    return [
        f"Two replicas of SmolLM2-135M with one thread each, router and client on the same {record.cores} cores.",
        f"Prompts of {prompt} tokens, answers of {output}, uniform; Poisson arrivals; targets {record.slo.ttft_s:g} s",
        f"and {1e3 * record.slo.tpot_s:g} ms. The simulator runs the same cores with the same settings and the very",
        "same requests; the cost of a step is that of `phaseserve profile`, taken before the live runs. All times by",
        "the router's clock.",
    ]


def _company(record: Record) -> list[str]:
    """A warning when the machine was not ours alone."""
    most = max((point.other_cores for point in record.points), default=0.0)
    if most < _ALONE_CORES:
        return []
    return [
        "",
        f"**Others used up to {most:.1f} of the {record.cores} cores meanwhile, now more and now less:",
        "what follows shows that it works, not how well.**",
    ]


def draw(path: Path, kinds: Mapping[str, Sequence[Cell]]) -> bool:
    """Every quantile as a point, live across, simulated up: hollow with the predictor, full with a table. False, and
    nothing drawn, without matplotlib."""
    if missing() is not None:
        return False
    look_of = looks(list(_LAYOUTS.values()))
    with figure(11.0, 6.8) as made:
        both = made.subplots(1, len(FIGURES))
        for axes, (name, _) in zip(both, FIGURES.items(), strict=True):
            mine = [one for found in kinds.values() for one in found if one.figure == name]
            mine = [one for one in mine if math.isfinite(one.error)]
            if not mine:
                raise ConfigError("nothing was measured that could be drawn", param="plots")
            ends = [1e3 * value for one in mine for value in (one.live_s, one.simulated_s)]
            low, high = min(ends) / 1.15, max(ends) * 1.15
            axes.set_xscale("log")
            axes.set_yscale("log")
            axes.fill_between([low, high], [low * (1 - GOAL), high * (1 - GOAL)], [low * (1 + GOAL), high * (1 + GOAL)],
                              color=GREY, alpha=0.2, linewidth=0, label=f"±{GOAL:.0%}")  # fmt: skip
            axes.plot([low, high], [low, high], color=GREY, linewidth=1.0)
            for layout, known_as in _LAYOUTS.items():
                look = look_of[known_as]
                for kind, found in kinds.items():
                    here = [one for one in found if one.figure == name and one.layout == layout]
                    axes.plot([1e3 * one.live_s for one in here], [1e3 * one.simulated_s for one in here], look.marker,
                              color=look.colour, label=f"{layout}, {kind}",
                              fillstyle="none" if kind == FITTED else "full")  # fmt: skip
            axes.set_title(f"{name}: P50, P90, P99", loc="left")
            axes.set_xlabel("live, ms")
            axes.set_ylabel("simulated, ms")
            axes.set_xlim(low, high)
            axes.set_ylim(low, high)
            plain_log(axes.xaxis)
            plain_log(axes.yaxis)
        made.legend(*both[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, frameon=False)
        write_picture(path, png(made))
    return True


def _table(found: Sequence[Cell]) -> list[str]:
    heads = [f"{name} P{100 * share:.0f}" for name in FIGURES for share in SHARES]
    lines = [
        "Live / simulated in ms, and the simulator's error:",
        "",
        "| layout | per s | " + " | ".join(heads) + " |",
        "| --- | ---: |" + " ---: |" * len(heads),
    ]
    points = dict.fromkeys((one.layout, one.per_s) for one in found)
    for layout, per_s in points:
        cells = [one for one in found if (one.layout, one.per_s) == (layout, per_s)]
        words = [f"{1e3 * one.live_s:.0f} / {1e3 * one.simulated_s:.0f} ({one.error:+.0%})" for one in cells]
        lines.append(f"| {layout} | {per_s:g} | " + " | ".join(words) + " |")
    return lines


def _asleep(found: Sequence[Cell]) -> list[str]:
    if not found:
        return []
    good, every = within(found)
    return [
        "## The same with steps of known length",
        "",
        "Live engines that only sleep, as long as the simulator is told: what is off here is not the steps' cost.",
        "",
        f"**{good} of {every} within {GOAL:.0%}**, mean error without its sign {_mean_error(found):.1%}.",
        "",
        *_table(found),
        "",
    ]


def _by_figure(found: Sequence[Cell]) -> list[tuple[str, str]]:
    rows = []
    for name in FIGURES:
        for share in SHARES:
            good, every = within([one for one in found if (one.figure, one.share) == (name, share)])
            rows.append((f"{name} P{100 * share:.0f}", f"{good}/{every}"))
    return rows


def _mean_error(found: Sequence[Cell]) -> float:
    errors = [abs(one.error) for one in found if math.isfinite(one.error)]
    return fmean(errors) if errors else math.nan


def _honest(record: Record, found: Sequence[Cell]) -> list[str]:
    """What does not agree, in sentences made of the figures."""
    off = sorted((one for one in found if abs(one.error) > GOAL), key=lambda one: -abs(one.error))
    failed = sum(seen.error is not None for point in record.points for seen in point.seen)
    asked = sum(len(point.seen) for point in record.points)
    fewest = min((len(point.seen) for point in record.points), default=0)
    words = [f"Live, {failed} of {asked} requests failed or did not end in time."]
    if not off:
        return [*words, f"All quantiles are within {GOAL:.0%}."]
    worst = off[0]
    bias = fmean(one.error for one in found if math.isfinite(one.error))
    return [
        *words,
        f"Outside {GOAL:.0%}: {len(off)}; farthest off is {worst.figure} P{100 * worst.share:.0f} of {worst.layout} at"
        f" {worst.per_s:g}/s ({worst.error:+.0%}). The mean error with its sign is {bias:+.1%}"
        f" ({'the simulator is too slow' if bias > 0.0 else 'the simulator is too fast'}).",
        f"A P99 of {fewest} requests is its last or next to last one: one disturbed step of a live run moves it.",
        "Live steps also slow each other down in ways that two states (alone, beside a neighbour) do not tell.",
    ]


def _told(record: Record, cost: CostFile) -> list[str]:
    lines = []
    if record.points:
        one = around(record, cost, record.points[0], IDLE_PROMPT, IDLE_OUTPUT)
        lines.append(
            f"a message between router and replica {1e3 * one.message_s:.2f} ms, a turn of the replica's loop"
            f" {1e3 * one.turn_s:.2f} ms (single requests on the idle fleet)"
        )
    for idle in record.idle:
        lines.append(f"idle, {idle.layout}: TTFT {1e3 * idle.ttft_s:.1f} ms, TPOT {1e3 * idle.tpot_s:.1f} ms")
    for point in record.points:
        link = "" if point.link_bytes_per_s is None else f", links {point.link_bytes_per_s / 1e9:.2f} GB/s"
        lines.append(
            f"{point.layout}, {point.per_s:g}/s: {point.own_cores:.2f} cores busy, of them {point.beside_cores:.2f} not"
            f" with engines (while both compute, steps are longer by what that is of the rest), by other processes"
            f" {point.other_cores:.2f}{link}"
        )
    return lines


def _learnt(record: Record, cost: CostFile) -> list[str]:
    """Typical steps as the profile has them and as live replicas learnt them: where both differ, steps are to blame."""
    prompt, rows = StepShape(), StepShape()
    prompt.add_prefill(0, 192)
    rows.add_decodes(3, 3 * 220)
    table = cost.refitted(TABLE)
    crowded = table.crowded or table.cost
    lines = [
        "",
        "What a prompt of 192 tokens and a decode step of 3 streams take, ms. By the table:"
        f" {1e3 * table.cost.step_s(prompt):.0f} and {1e3 * table.cost.step_s(rows):.1f} alone,"
        f" {1e3 * crowded.step_s(prompt):.0f} and {1e3 * crowded.step_s(rows):.1f} beside a neighbour. As the live",
        "replicas had learnt it at the end of each point (the simulator is not told):",
        "",
    ]
    for point in record.points:
        words = [f"{1e3 * prompt.predict_s(one):.0f} and {1e3 * rows.predict_s(one):.1f}" for one in point.learnt]
        lines.append(f"- {point.layout}, {point.per_s:g}/s: {'; '.join(words)}")
    return lines


def _fit(off: Residuals) -> str:
    return (
        f"off by {off.mape:.1%} in the mean, {off.p95:.1%} at the 95th percentile of {off.points} kinds of steps;"
        f" steps of one kind spread by {off.noise:.1%}"
    )
