"""`auto` against the best static layout known in hindsight.

All four recorded traces (time-scaled, prefix hashes used) over several link rates, and loads that change while they
run. RESULT.md and the pictures are written again whenever a trace or a changing load is done. All of it takes about an
hour on one core, `--quick` some minutes.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from experiments.auto.fleets import auto_fleet, static_fleets
from experiments.auto.loads import CHANGING_GBIT, LINKS_GBIT, TRACES, changing, recorded
from experiments.auto.pictures import draw_changed, draw_scans
from experiments.auto.report import Changed, Planned, write_result
from experiments.auto.runs import Runner, Scan
from experiments.load.command_line import (
    add_out,
    add_seeds,
    add_store,
    add_traces,
    add_workers,
    check_traces,
    count,
    end,
    out_folder,
    parser_of,
    positive,
)

HERE = Path(__file__).parent


def main(words: Sequence[str] | None = None) -> int:
    """The traces over the first link, then the changing loads, then the traces over the other links."""
    parser = _parser()
    options = parser.parse_args(words)
    check_traces(parser, options.traces, [file for file, *_ in TRACES])
    out = out_folder(parser, options, HERE)
    _run(options, out)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("auto", __doc__)
    parser.add_argument("--quick", action="store_true", help="one trace over the first link and one changing load")
    files = [file for file, *_ in TRACES]
    add_traces(
        parser, [file for file in files if file.endswith(".csv")], [file for file in files if not file.endswith(".csv")]
    )
    parser.add_argument(
        "--parts",
        nargs="+",
        choices=("changing", "traces"),
        default=("changing", "traces"),
        help="to be run (default both)",
    )
    parser.add_argument(
        "--links",
        type=positive,
        nargs="+",
        default=LINKS_GBIT,
        metavar="GBIT",
        help="Gbit/s of each host, under traces "
        f"(default {' '.join(f'{link:g}' for link in LINKS_GBIT)}; changing loads: {CHANGING_GBIT:g})",
    )
    parser.add_argument("--replicas", type=count, default=4, metavar="N", help="of each fleet (default %(default)s)")
    add_seeds(parser, 2, "of the changing loads")
    add_workers(parser)
    add_store(parser, "auto")
    add_out(parser, HERE, "RESULT.md and the pictures")
    return parser


def _run(options: argparse.Namespace, out: Path) -> None:
    """Raises `ConfigError` for a trace that is not there or a store that cannot be used."""
    runner = Runner(options.store, options.workers, options.replicas)
    fleets = [*static_fleets(options.replicas), auto_fleet(options.replicas)]
    loads = recorded(options.traces)
    folder = options.store.parent / "auto"
    planned = Planned(
        traces=tuple((load.name, link) for link in LINKS_GBIT for load in loads),
        changing=tuple((load.name, seed) for seed in range(2) for load in changing(folder, 0)),
    )
    scans: list[Scan] = []
    changed: list[Changed] = []

    def trace_runs(links: Sequence[float]) -> None:
        for link in links if "traces" in options.parts else ():
            for load in loads[:1] if options.quick else loads:
                scans.extend(runner.scans(load, link))
                draw_scans(out, scans)
                write_result(out, scans, changed, planned)

    trace_runs(options.links[:1])
    for seed in range(1 if options.quick else options.seeds) if "changing" in options.parts else ():
        for load in changing(folder, seed)[: 1 if options.quick else None]:
            rows = tuple(runner.once(load, CHANGING_GBIT, fleets))
            changed.append(Changed(load=load, seed=seed, rows=rows))
            print(changed[-1].told(), flush=True)
            draw_changed(out, changed[-1])
            write_result(out, scans, changed, planned)
    if not options.quick:
        trace_runs(options.links[1:])


if __name__ == "__main__":
    end("auto", main)
