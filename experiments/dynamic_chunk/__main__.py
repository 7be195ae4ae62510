"""Chunk policies on pipelines: latencies, bubbles, attainment, delay scheduling; writes RESULT.md and a plot.

    python -m experiments.dynamic_chunk [--quick] [--traces ../shared/traces] [--workers 1]

Rows are kept: a run that was stopped goes on where it was. About 10 minutes on a core.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.dynamic_chunk.loads import AZURE, POLICIES, SHAREGPT, TRACE, Load, case, stages
from experiments.dynamic_chunk.reading import reading
from experiments.dynamic_chunk.tables import (
    HEAD,
    PAPER,
    compared,
    delay_lines,
    drawn,
    line,
    scan_head,
    scan_lines,
    seeds_told,
)
from experiments.load.command_line import (
    add_out,
    add_store,
    add_traces,
    add_workers,
    check_traces,
    end,
    out_folder,
    parser_of,
)
from experiments.load.document import Document, command
from simulator.drawing import missing, write_picture
from simulator.grid import Case, Row, failed, run_grid

HERE = Path(__file__).parent
SEEDS = (0, 1)
SCANNED = ("sarathi(256)", "sarathi(512)", "sarathi(2048)", "deadline", "dcp_greedy", "dcp_predictive")
SCALES = (1.0, 0.5)
RATES = (3.0, 5.0, 7.0)
FEWER = ("sarathi(512)", "deadline", "dcp_predictive")


class Bench:
    """Runs cases with the options of the command line."""

    def __init__(self, document: Document, options: argparse.Namespace) -> None:
        self._document = document
        self._options = options
        self.requests = 40 if options.quick else 400
        self.many = 40 if options.quick else 1200

    def case(self, data: str, rate: float, policy: str, pp: int, **more: Any) -> Case:
        """See `loads.case`."""
        return self.load_case(Load(data=data, rate=rate, requests=self.requests), policy, pp, **more)

    def load_case(self, load: Load, policy: str, pp: int, **more: Any) -> Case:
        """The same of a load."""
        return case(load, policy, pp, self._options.traces, **more)

    def run(self, title: str, cases: Sequence[Case]) -> list[Row]:
        """The rows that did not fail; those that did are told."""
        options = self._options
        rows = run_grid(cases, options.store, workers=options.workers, progress=False, extra=stages)
        for row in failed(rows):
            self._document.section(title, f"{dict(row.labels)}: {row.error}")
        return [row for row in rows if not row.error]


def main(words: Sequence[str] | None = None) -> int:
    """Print tables as they come."""
    parser = parser_of("dynamic_chunk", __doc__)
    parser.add_argument("--quick", action="store_true", help="few and short runs: whether it works at all")
    add_traces(parser, (TRACE,))
    add_workers(parser)
    add_store(parser, "dynamic_chunk")
    add_out(parser, HERE, "RESULT.md and the pictures")
    options = parser.parse_args(words)
    check_traces(parser, options.traces, (TRACE,))
    out = out_folder(parser, options, HERE)
    told = command("experiments.dynamic_chunk", sys.argv[1:] if words is None else words)
    _run(options, Document(out / "RESULT.md", "Chunk policies on pipelines", told))
    return 0


def _run(options: argparse.Namespace, document: Document) -> None:
    """Raises `ConfigError` for a trace that is not there or a store that cannot be used."""
    bench = Bench(document, options)
    seeds, policies = ((0,), FEWER) if options.quick else (SEEDS, POLICIES)
    document.section("What was done", *_told(bench.requests, len(seeds)))
    parts = ("four stages", "the paper beside ours", "fewer stages", "rates", "delay scheduling")
    for part in parts:
        document.plan(part, part)
    four = {
        data: _table(document, bench, f"Four stages, {data} at {rate:g}/s", data, rate, 4, policies, seeds)
        for data, rate in ((AZURE, 5.0), (SHAREGPT, 12.0))
    }
    document.done(parts[0])
    document.section("The paper beside ours", *PAPER, *compared(four))
    document.done(parts[1])
    fewer = {
        title: _table(document, bench, title, AZURE, 3.0, pp, FEWER, seeds[:1])
        for pp, title in ((2, f"2 stages, {AZURE} at 3/s"), (1, f"One stage (TP4), {AZURE} at 3/s"))
    }
    document.done(parts[2])
    delayed = _delay(document, bench, (12.0,) if options.quick else (20.0,))
    document.done(parts[4])
    scanned = _scan(document, bench, options)
    document.section("What it says", *reading(four, fewer, delayed, scanned))
    document.done(parts[3])


def _table(
    document: Document,
    bench: Bench,
    title: str,
    data: str,
    rate: float,
    pp: int,
    policies: Sequence[str],
    seeds: Sequence[int],
) -> dict[str, list[Row]]:
    document.section(title, f"{seeds_told(len(seeds))} {HEAD[0]}", *HEAD[1:])
    found = {}
    for policy in policies:
        rows = bench.run(title, [bench.case(data, rate, policy, pp, seed=seed) for seed in seeds])
        if rows:
            found[policy] = rows
            document.section(title, line(policy, rows))
    return found


def _delay(document: Document, bench: Bench, rates: Sequence[float]) -> list[Row]:
    title = "Delay scheduling and the dealing out of streams"
    rows = bench.run(
        title,
        [
            bench.load_case(Load(data=SHAREGPT, rate=rate, requests=bench.many), policy, 4, micro_batches=kind)
            for rate in rates
            for policy in FEWER[1:]
            for kind in ("kept", "even", "delayed")
        ],
    )
    document.section(title, *delay_lines(rows))
    return rows


def _scan(document: Document, bench: Bench, options: argparse.Namespace) -> list[Row]:
    title = f"Attainment by rate, four stages, {AZURE}"
    rates = RATES[:1] if options.quick else RATES
    document.section(title, *scan_head(rates, 1 if options.quick else len(SEEDS)))
    rows: list[Row] = []
    for scale in SCALES:
        for policy in FEWER if options.quick else SCANNED:
            loads = [Load(data=AZURE, rate=rate, requests=bench.requests, scale=scale) for rate in rates]
            cases = [bench.load_case(load, policy, 4) for load in loads]
            found = bench.run(title, cases)
            rows += found
            document.section(title, *scan_lines(policy, scale, found))
    for scale in SCALES if missing() is None else ():
        picture = document.beside(f"attainment-times-{scale:g}.png".replace("0.", "0"))
        write_picture(picture, drawn(rows, scale))
        document.section(title, "", f"![attainment by rate, targets times {scale:g}]({picture.name})")
    return rows


def _told(requests: int, seeds: int) -> list[str]:
    return [
        "Qwen2.5-32B on four A100-40 over PCIe (roofline, tiles of 128 rows, 2 % noise; stages of TP1, TP2 or TP4), "
        f"one replica, {requests} requests a run, {seeds} seeds in the first tables and one elsewhere. Targets: TTFT 2 "
        "s, TPOT 200 ms, or both times a scale. `AzureConv`: parts of the conversation trace, made faster or slower "
        "to have the rate said; `ShareGPT`: lognormal lengths of its means and medians, Poisson. `sarathi(n)` is the "
        "fixed chunk n. Streams are dealt out evenly to the batches in flight unless said otherwise. Thresholds of "
        "`dcp_greedy`, and the window and staleness of `dcp_predictive`, are ours: the paper gives none.",
    ]


if __name__ == "__main__":
    end("dynamic_chunk", main)
