"""The sweep as a picture. The only module that needs matplotlib, which is imported when a picture is wanted.

Colours are Okabe and Ito's, which colour-blind eyes tell apart; each layout has a marker and a line style of its own
too, so that print in grey does.
"""

from __future__ import annotations

import importlib
import importlib.util
import io
import math
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from experiments.bandwidth_sweep.crossover import Verdict
from experiments.bandwidth_sweep.options import AUTO, MODES, Options
from experiments.bandwidth_sweep.summary import Summary

STYLES = {
    "colocated": ("#E69F00", "s", "--"),
    "phased": ("#009E73", "^", "-."),
    "disaggregated": ("#0072B2", "o", ":"),
    AUTO: ("#D55E00", "D", "-"),
}
SIZE_INCHES, DPI, FONT = (13.0, 9.5), 150, 12
PERCENT, MILLI = 100.0, 1e3


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """One line: what it is called, where its points are (rates in Mbit/s, infinite values left out)."""

    mode: str
    rates: tuple[float, ...]
    values: tuple[float, ...]


class Panel(msgspec.Struct, frozen=True, kw_only=True):
    """One set of axes, logarithmic or in percent. `target`: a level to mark."""

    title: str
    unit: str
    lines: tuple[Series, ...]
    log: bool = False
    target: float | None = None


def missing() -> str | None:
    """Why no picture can be drawn, or None."""
    if importlib.util.find_spec("matplotlib") is None:
        return "matplotlib is not installed (the bench extra has it)"
    return None


def panels(summaries: Sequence[Summary], options: Options) -> tuple[Panel, ...]:
    """What the picture shows, as values."""

    def lines(value: Callable[[Summary], float], *modes: str) -> tuple[Series, ...]:
        return tuple(_series(summaries, mode, value) for mode in modes or MODES if mode in options.modes)

    slo = options.slo
    return (
        Panel(
            title="Requests within both targets (EcoServe's clock)",
            unit="attainment (%)",
            lines=lines(lambda summary: summary.attained * PERCENT),
        ),
        Panel(
            title="TTFT + switch wait, P90 (no point: requests were given up)",
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
    """A PNG. Raises `ImportError` without matplotlib."""
    figure_module = importlib.import_module("matplotlib.figure")
    agg = importlib.import_module("matplotlib.backends.backend_agg")
    ticker = importlib.import_module("matplotlib.ticker")
    figure = figure_module.Figure(figsize=SIZE_INCHES, layout="constrained")
    agg.FigureCanvasAgg(figure)
    figure.suptitle(
        f"Which layout pays at which link rate: {options.engine} engine, {options.replicas} replicas,"
        f" {options.kv_layout.bytes_per_token / 1024:.0f} KiB of KV a token, {options.workload.per_s:g} requests/s",
        fontsize=FONT + 3,
    )
    for axes, panel in zip(figure.subplots(2, 2).flat, panels(summaries, options), strict=True):
        _draw_panel(axes, ticker, panel, verdict)
        axes.set_xscale("log")
        axes.set_xticks(list(options.mbit_per_s))
        axes.xaxis.set_major_formatter(ticker.FormatStrFormatter("%g"))
        axes.xaxis.set_minor_locator(ticker.NullLocator())
        axes.set_xlabel("link rate of each host (Mbit/s)", fontsize=FONT)
        axes.tick_params(labelsize=FONT - 1)
    handles = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=4, fontsize=FONT)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=DPI)
    return content.getvalue()


def _draw_panel(axes: Any, ticker: Any, panel: Panel, verdict: Verdict) -> None:
    for line in panel.lines:
        colour, marker, style = STYLES[line.mode]
        front = 4 if line.mode == AUTO else 3
        axes.plot(line.rates, line.values, color=colour, marker=marker, linestyle=style, linewidth=2.2, markersize=7,
                  label=line.mode, zorder=front)  # fmt: skip
    if not panel.log:
        axes.set_ylim(-3.0, 103.0)
    else:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(ticker.LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
        axes.yaxis.set_minor_locator(ticker.NullLocator())
    if panel.target is not None:
        axes.axhline(panel.target, color="#777777", linewidth=1.5, label="target")
    for rate, style, word in ((verdict.crossover, "-", "measured"), (verdict.predicted, "--", "predicted")):
        if rate is not None:
            axes.axvline(
                rate, color="black", linestyle=style, linewidth=1.6, label=f"crossover {word}: {rate:.0f} Mbit/s"
            )
    axes.set_title(panel.title, fontsize=FONT + 1)
    axes.set_ylabel(panel.unit, fontsize=FONT)
    axes.grid(True, which="major", color="#dddddd")


def _series(summaries: Sequence[Summary], mode: str, value: Callable[[Summary], float]) -> Series:
    mine = sorted((one.mbit_per_s, value(one)) for one in summaries if one.mode == mode)
    finite = [(rate, figure) for rate, figure in mine if math.isfinite(figure)]
    return Series(mode=mode, rates=tuple(rate for rate, _ in finite), values=tuple(figure for _, figure in finite))
