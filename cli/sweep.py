"""`phaseserve sweep`: the simulator over a grid, on all cores; with --live the links of this machine, measured.

    phaseserve sweep --layout colocated,3:1 --replicas 4 --data longbench --slo 15:0.05 --rate 2:6:1 --link-rate 1,5,20

Values are separated by commas; numbers may be LOW:HIGH:STEP. What does not vary is said as for `phaseserve simulate`,
by --config and --set. The file may hold the grid too:

[sweep]        rate = "2:16:2", layout = ["phased", "1:3"], slo = ["5:0.1", "1:0.05"], ... as the options below
[sweep.vary]   "scheduling.max_chunk" = [512, 2048]

Into --out go rows.jsonl (each run as soon as it is done: after a kill the same command goes on from there), sweep.csv
and sweep.parquet (all figures of all runs), goodput.csv (with several rates: the highest rate with enough requests
within both targets, `goodput_is_bound` where that is the highest of the scan, and every dip below it), and pictures. A
run of a minute of requests takes some seconds of one core. Where nobody hands KV over (phased, colocated), runs that
differ in the link rate only are one run, at the first of the rates.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import msgspec

from cli.asked import Parser, check_target
from cli.overlay import parse_assignment, read_toml
from cli.supervisor import module_command
from cli.sweep_axes import AXES, Label, cases_of, label_of, parse_variation, values_of, variations_of
from cli.sweep_pictures import pictures_of
from cli.sweep_table import goodput_lines, run_lines
from cli.terms import ATTAINED, LATENCIES, goodput_terms
from contracts.errors import ConfigError
from contracts.request import Slo
from simulator.drawing import missing
from simulator.files import write_whole
from simulator.goodput import Goodput
from simulator.grid import Case, Row, Value, failed, goodputs, run_grid
from simulator.grid.tables import as_csv, as_parquet, columns_of, goodput_columns, missing_parquet

PROGRAM = "experiments.bandwidth_sweep"
LIVE = "--live"
EXIT_FAILED = 1
TABLES = ("sweep.csv", "sweep.parquet", "goodput.csv")


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for: the cases, and what varies."""

    cases: list[Case]
    axes: dict[str, tuple[Label, ...]]
    share: float
    out: Path

    @property
    def by(self) -> tuple[str, ...]:
        """The labels that tell lines of a scan apart: all but the rate and the seed."""
        return tuple(label_of(name) for name in self.axes if name not in ("rate", "seed"))

    @property
    def slo(self) -> Slo | None:
        """The targets of all requests, if they have the same."""
        slos = {kind.slo for case in self.cases for kind in case.scenario.workload.classes}
        return slos.pop() if len(slos) == 1 else None


def run(words: list[str]) -> int:
    """Simulate the grid, or become the live sweep. Exit status 1 when a case failed. Raises `ConfigError`."""
    if LIVE in words:
        return _live([word for word in words if word != LIVE])
    arguments = parser().parse_args(words)
    grid = grid_of(arguments)
    for option, unwanted, reason in (
        ("--no-parquet", arguments.no_parquet, missing_parquet()),
        ("--no-plots", arguments.no_plots, missing()),
    ):
        if reason is not None and not unwanted:
            raise ConfigError(f"{reason} (or say {option})", param=option)
    store = grid.out / "rows.jsonl"
    if grid.out.is_dir():
        for name in TABLES:
            check_target("--out", grid.out / name)
    try:
        rows = run_grid(grid.cases, store, arguments.workers, mixing=arguments.mix)
    except (KeyboardInterrupt, SystemExit):
        print(f"sweep: interrupted; the same command goes on from {store}", file=sys.stderr)
        raise
    found, lines = _found(grid, rows)
    files = _tables(rows, found, grid.by, parquet=not arguments.no_parquet)
    files |= {} if arguments.no_plots else _pictures(grid, rows)
    for name, content in files.items():
        write_whole(grid.out / name, content)
    print("\n".join(lines))  # when all is written: a reader who leaves ends the program
    print(f"written: {', '.join(map(str, [store, *(grid.out / name for name in files)]))}")
    lost = failed(rows)
    for row in lost[:8]:
        print(f"sweep: failed: {dict(row.labels)}: {row.error}", file=sys.stderr)
    if lost:
        print(f"sweep: {len(lost)} of {len(rows)} runs failed; the same command tries them again", file=sys.stderr)
    return EXIT_FAILED if lost else 0


def parser() -> argparse.ArgumentParser:
    """The command line."""
    terms = "\n".join((*goodput_terms(0.9), *ATTAINED, *LATENCIES))
    found = Parser(
        prog="phaseserve sweep",
        description=f"{__doc__}\n{terms}\n\nDefaults are those without a file: what it or --set says is kept.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    found.add_argument("--config", type=Path, metavar="FILE", help="TOML file: settings, and the grid in [sweep]")
    found.add_argument("--set", action="append", default=[], metavar="K=V", help="one setting, e.g. slo.ttft_s=2")
    for name, axis in AXES.items():
        found.add_argument(f"--{name}", metavar="V,V", help=axis.tells)
    found.add_argument("--vary", action="append", default=[], metavar="K=[V,V]", help="values of any other setting")
    found.add_argument("--share", type=float, default=0.9, metavar="S", help="attainment that goodput asks for, above 0"
                       " to 1 (default 0.9)")  # fmt: skip
    found.add_argument("--out", type=Path, default=Path("sweep"), metavar="FOLDER",
                       help="where the files go (default: sweep)")  # fmt: skip
    found.add_argument("--workers", type=int, metavar="N", help="processes (default: one for each core)")
    found.add_argument("--mix", action="store_true", help="the folder may hold runs of another grid or version")
    found.add_argument("--leave-out", action="store_true", help="leave out cases that are impossible, e.g. no room")
    found.add_argument("--no-parquet", action="store_true", help="CSV only")
    found.add_argument("--no-plots", action="store_true", help="tables only")
    found.add_argument(LIVE, action="store_true", help="measure instead, for minutes: real processes in network"
                       " namespaces of this machine; wants Linux, ip and tc, and root or user namespaces of one's own"
                       " (--live --help tells more)")  # fmt: skip
    return found


def grid_of(arguments: argparse.Namespace) -> Grid:
    """The grid of file and command line. Raises `ConfigError` naming what is wrong, before anything is written."""
    layers = [read_toml(arguments.config)] if arguments.config else []
    in_file = layers[0].get("sweep", {}) if layers else {}
    if not isinstance(in_file, dict):
        raise ConfigError("sweep is a section, not a value", param="sweep")
    unknown = [name for name in in_file if name not in (*AXES, "vary")]
    if unknown:
        raise ConfigError(f"unknown axis sweep.{unknown[0]}; there are {', '.join(AXES)} and vary", param="sweep")
    varied = in_file.get("vary", {})
    if not isinstance(varied, dict):
        raise ConfigError("sweep.vary is a section, not a value", param="sweep.vary")
    said = {name: getattr(arguments, name.replace("-", "_")) for name in AXES}
    given = {name: in_file[name] if said[name] is None else said[name] for name in AXES
             if name in in_file or said[name] is not None}  # fmt: skip
    axes = {name: values_of(name, value) for name, value in given.items()}
    variations = variations_of(varied | dict(map(parse_variation, arguments.vary)))
    if not axes and not variations:
        raise ConfigError("nothing varies: name --rate, --layout or another axis", param="sweep")
    if not 0.0 < arguments.share <= 1.0:
        raise ConfigError("--share must be above 0 and at most 1", param="--share")
    layers += map(parse_assignment, arguments.set)
    tell = _tell if arguments.leave_out else None
    cases = cases_of(layers, axes, variations, tell)
    return Grid(cases=cases, axes={**variations, **axes}, share=arguments.share, out=arguments.out)


def _found(grid: Grid, rows: list[Row]) -> tuple[dict[tuple[Value, ...], Goodput], list[str]]:
    """The goodputs, where rates were scanned, and what is to be printed."""
    there = [row for row in rows if not row.error]
    if len(grid.axes.get("rate", ())) > 1 and there:
        found = goodputs(there, grid.by, grid.share)
        return found, list(goodput_lines(grid.by, found, grid.share))
    return {}, list(run_lines(list(grid.axes), there))


def _tables(
    rows: list[Row], found: dict[tuple[Value, ...], Goodput], by: tuple[str, ...], *, parquet: bool
) -> dict[str, bytes]:
    """Files by name."""
    columns = columns_of(rows)
    table, packed, scanned = TABLES
    files = {table: as_csv(columns)}
    if parquet:
        files[packed] = as_parquet(columns)
    if found:
        files[scanned] = as_csv(goodput_columns(by, found))
    return files


def _pictures(grid: Grid, rows: list[Row]) -> dict[str, bytes]:
    """Files by name."""
    there = [row for row in rows if not row.error]
    return pictures_of(grid.axes, there, grid.share, grid.slo) if there else {}


def _tell(line: str) -> None:
    print(f"sweep: {line}", file=sys.stderr)


def _live(words: list[str]) -> int:
    """Become `experiments.bandwidth_sweep`, a sibling of this room: it is run, not imported."""
    argv = module_command(PROGRAM, *words)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)
