"""The sweep as a picture, drawn as all others are (`simulator.drawing`): four panels over the link rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from experiments.bandwidth_sweep.crossover import Verdict
from experiments.bandwidth_sweep.options import AUTO, MODES, Options
from experiments.bandwidth_sweep.summary import Summary
from simulator.drawing import Line
from simulator.drawing.lines import finish, mark_target, plot
from simulator.drawing.style import figure, plain_log, png

WIDTH_INCHES, HEIGHT_INCHES = 16.5, 10.5
PERCENT, MILLI = 100.0, 1e3


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One set of axes over the rate in Mbit/s, logarithmic or in percent. `target`: a level to mark."""

    title: str
    unit: str
    lines: tuple[Line, ...]
    log: bool = False
    target: float | None = None


def panels(summaries: Sequence[Summary], options: Options) -> tuple[Panel, ...]:
    """What the picture shows, as values."""

    def lines(value: Callable[[Summary], float], *modes: str) -> tuple[Line, ...]:
        return tuple(_line(summaries, mode, value) for mode in modes or MODES if mode in options.modes)

    slo = options.slo
    return (
        Panel(
            title="Requests within both targets (EcoServe's clock)",
            unit="attainment (%)",
            lines=lines(lambda summary: summary.attained * PERCENT),
        ),
        Panel(
            title="TTFT + switch wait, P90 (no point: given up)",
            unit="ms",
            lines=lines(lambda summary: summary.ready.p90 * MILLI),
            log=True,
            target=slo.ttft_s * MILLI,
        ),
        Panel(
            title="TPOT end to end, switch wait included, P90",
            unit="ms per token",
            lines=lines(lambda summary: summary.tpot.p90 * MILLI),
            log=True,
            target=slo.tpot_s * MILLI,
        ),
        Panel(
            title="Requests that were handed over",
            unit="share (%)",
            lines=lines(lambda summary: summary.handed_over * PERCENT, "disaggregated", AUTO),
        ),
    )


def draw(summaries: Sequence[Summary], verdict: Verdict, options: Options) -> bytes:
    """A PNG. Raises `ConfigError` without matplotlib."""
    with figure(WIDTH_INCHES, HEIGHT_INCHES) as made:
        made.suptitle(
            f"Which layout pays at which link rate: {options.engine} engine, {options.replicas} replicas,"
            f" {options.kv_layout.bytes_per_token / 1024:.0f} KiB of KV a token, {options.workload.per_s:g} requests/s"
        )
        ends = [
            (axes, _draw_panel(axes, panel, verdict, options))
            for axes, panel in zip(made.subplots(2, 2).flat, panels(summaries, options), strict=True)
        ]
        lines = {label: line for axes, _ in ends for line, label in zip(*axes.get_legend_handles_labels(), strict=True)}
        if lines:
            made.legend(lines.values(), lines.keys(), loc="outside lower center", ncols=2, frameon=False)
        for axes, names in ends:
            finish(made, axes, names)
        return png(made)


def _draw_panel(axes: Any, panel: Panel, verdict: Verdict, options: Options) -> list[tuple[str, str, float, float]]:
    """Returns what `finish` wants."""
    axes.set_title(panel.title, loc="left")
    axes.set_xlabel("link rate of each host (Mbit/s)")
    axes.set_ylabel(panel.unit)
    axes.set_xscale("log")
    if panel.log:
        axes.set_yscale("log")
    ends = plot(axes, panel.lines) if any(line.points for line in panel.lines) else []
    axes.set_xticks(list(options.mbit_per_s), labels=[f"{rate:g}" for rate in options.mbit_per_s])
    axes.minorticks_off()
    if panel.log:
        plain_log(axes.yaxis)
    else:
        axes.set_ylim(-3.0, 103.0)
    if panel.target is not None:
        mark_target(axes, panel.target, "target")
    for rate, style, word in ((verdict.crossover, "-", "measured"), (verdict.predicted, "--", "predicted")):
        if rate is not None:
            label = f"crossover {word}: {rate:.0f} Mbit/s"
            axes.axvline(rate, color="black", linestyle=style, linewidth=1.6, label=label)
    return ends


def _line(summaries: Sequence[Summary], mode: str, value: Callable[[Summary], float]) -> Line:
    """Infinite values are left out."""
    mine = sorted((one.mbit_per_s, value(one)) for one in summaries if one.mode == mode)
    return Line(name=mode, points=tuple(point for point in mine if math.isfinite(point[1])))
