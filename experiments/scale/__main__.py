"""Measure how fast simulations run and what they need, and write RESULT.md and a picture.

    python -m experiments.scale --traces FOLDER [--vidur PYTHON] [--parts vidur requests replicas memory] [--stored]
        [--requests N] [--fleet-requests N] [--repeats N] [--version HASH] [--quick]

`--vidur` names the Python of an environment in which `pip install vidur` was done. Measurements are kept by the version
of the code: a run that was stopped goes on where it was, parts can be run one at a time, and RESULT.md is made of all
that the store holds. `--stored` measures nothing.

A million requests, as `requests` (twice) and `replicas` have them unless told otherwise, take two cores from minutes to
an hour, by the machine and the case; `vidur` and `memory` take minutes, and so does `--quick`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from contracts.errors import ConfigError
from experiments.load.command_line import RESULTS, add_out, add_traces, end, out_folder, parser_of
from experiments.load.document import Document, command
from experiments.scale.cases import CODE, CONVERSATION
from experiments.scale.measuring import NotMeasured, ours, vidur
from experiments.scale.one import Measured
from experiments.scale.parts import MILLION, NATIVE, OURS, PARTS, Asked
from experiments.scale.picture import PICTURE, draw_costs
from experiments.scale.store import Job, Store, origin_of
from experiments.scale.tables import NOTES, TABLES
from experiments.scale.verdicts import verdicts

HERE = Path(__file__).parent
DRAWN = "In one picture"
_PICTURED = (
    f"![CPU of a request and of a decision over the size of the fleet]({PICTURE})",
    "",
    "CPU as in the tables: medians beside Vidur, elsewhere the run with most requests of each fleet. A goal of wall",
    "time is shown as what both cores may take.",
)
CLOSING = "What does not agree, and what was not run"


def main(words: Sequence[str] | None = None) -> int:
    """Measure, and write the document after each measurement."""
    parser = _parser()
    options = parser.parse_args(words)
    if options.version and not options.stored:
        parser.error("--version goes with --stored")
    path = options.store or RESULTS / ("scale-quick.jsonl" if options.quick else "scale.jsonl")
    asked = Asked(
        traces=options.traces.resolve(),
        vidur=options.vidur,
        requests=min(options.requests, 20_000) if options.quick else options.requests,
        fleet_requests=options.fleet_requests,
        repeats=1 if options.quick else options.repeats,
        quick=options.quick,
    )
    told = command("experiments.scale", sys.argv[1:] if words is None else words)
    store = Store(path, options.version)
    if options.stored and not store.rows:
        raise ConfigError(f"{path} holds no measurement: there is nothing to show", param="store")
    out = out_folder(parser, options, HERE)
    failed: list[str] = []
    for name in () if options.stored else options.parts:
        for job in PARTS[name](asked):
            try:
                store.measure(job, partial(_run, job, asked))
            except NotMeasured as error:
                failed.append(f"{name}, {job.who}, {job.case.replicas} replicas: {error}")
            compose(store, out, told, failed)
    compose(store, out, told, failed, stored=options.stored)
    return 0


def compose(store: Store, folder: Path, told: str, failed: Sequence[str] = (), *, stored: bool = False) -> None:
    """RESULT.md of all that the store holds, whole; `failed` was tried just now and gave nothing. `stored`: nothing was
    measured now."""
    shown = {name: store.shown(name) for name in PARTS}
    rows_of = origin_of([row for rows in shown.values() for row in rows]) if stored else ""
    document = Document(folder / "RESULT.md", "Speed and size of simulations", told, rows_of)
    document.replace("What was done", NOTES)
    for name, (title, lines) in TABLES.items():
        if shown[name]:
            document.replace(title(shown[name]), *lines(shown[name]))
    if draw_costs(shown, document.beside(PICTURE)):
        document.replace(DRAWN, *_PICTURED)
    left_out = [f"- Part `{name}`: not run." for name in TABLES if not shown[name]]
    document.replace(CLOSING, *verdicts(shown), *left_out, *(f"- Failed: {one}." for one in failed))
    document.write()


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("scale", __doc__)
    parser.add_argument("--quick", action="store_true", help="small numbers: whether it works at all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="to be measured (default all)")
    parser.add_argument("--stored", action="store_true", help="show what the store holds, measure nothing")
    parser.add_argument("--version", default="", help="with --stored: of this version of the code, or commit, only")
    add_traces(parser, (CODE, CONVERSATION))
    parser.add_argument("--vidur", default="", metavar="PYTHON", help="Python of an environment with Vidur")
    parser.add_argument(
        "--requests", type=_count, default=MILLION, metavar="N", help="of part requests (default %(default)s)"
    )
    parser.add_argument(
        "--fleet-requests",
        type=_count,
        default=MILLION,
        metavar="N",
        help="of part replicas, at most (default %(default)s)",
    )
    parser.add_argument(
        "--repeats", type=_count, default=3, metavar="N", help="of part vidur, taking turns (default %(default)s)"
    )
    parser.add_argument(
        "--store",
        type=Path,
        metavar="FILE",
        help="what was measured, by version of the code (default results/scale.jsonl, with --quick "
        "results/scale-quick.jsonl)",
    )
    add_out(parser, HERE, "RESULT.md and the picture")
    return parser


def _count(word: str) -> int:
    if not word.isdecimal() or int(word) < 1:
        raise argparse.ArgumentTypeError(f"{word} is not a whole number from 1")
    return int(word)


def _run(job: Job, asked: Asked) -> Measured:
    """Raises `NotMeasured`, `ConfigError` for a trace that is not there."""
    print(f"{datetime.now(UTC):%H:%M:%S} {job.who}, {job.case.replicas} replicas, {job.case.num_requests} requests")
    if job.who == OURS:
        return ours(job.case, asked.traces)
    if not asked.vidur:
        raise NotMeasured("--vidur names no Python that has Vidur")
    return vidur(asked.vidur, job.case, asked.traces, native=job.who == NATIVE)


if __name__ == "__main__":
    end("scale", main)
