"""Run the evaluation, or parts of it, and write RESULT.md.

    python -m experiments.ecoserve [--quick] [--coarse] [--parts goodput scaling ...] [--seeds 2] [--cells 3]
    python -m experiments.ecoserve --stored [--coarse] [--version HASH]

Rows are kept: a run that was stopped goes on where it was. All of it takes many hours on one core, `--coarse`
a few, `--quick` minutes. With `--stored` nothing is run: rows of the one version of the
code that the store holds are shown, or of `--version`, with the other options as they were run with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from experiments.ecoserve.mitosis import mitosis
from experiments.ecoserve.notes import NOTES
from experiments.ecoserve.parts import CELLS, PARTS, goodput
from experiments.ecoserve.reading import reading
from experiments.ecoserve.scan import COARSE_STEPS, QUICK_STEPS, Budget
from experiments.ecoserve.seen import Seen
from experiments.ecoserve.versions import chosen, commit_of
from experiments.load.command_line import (
    add_out,
    add_seeds,
    add_store,
    add_stored,
    add_workers,
    check_stored,
    end,
    out_folder,
    parser_of,
)
from experiments.load.document import Document, command

HERE = Path(__file__).parent
ALL = {"mitosis": mitosis, **PARTS}


def main(words: Sequence[str] | None = None) -> int:
    """Print tables as they come."""
    parser = _parser()
    arguments = parser.parse_args(words)
    check_stored(parser, arguments)
    version = chosen(arguments.store, arguments.version) if arguments.stored else ""
    told = command("experiments.ecoserve", sys.argv[1:] if words is None else words)
    _run(arguments, version, told, out_folder(parser, arguments, HERE))
    return 0


def _run(arguments: argparse.Namespace, version: str, told: str, out: Path) -> None:
    """Raises `ConfigError` for a store that cannot be used."""
    budget = Budget(seeds=arguments.seeds, store=arguments.store, workers=arguments.workers, version=version)
    cells = CELLS[: arguments.cells]
    if arguments.coarse:
        budget = msgspec.structs.replace(budget, steps=COARSE_STEPS, duration=2.0)
    if arguments.quick:
        budget = msgspec.structs.replace(budget, steps=QUICK_STEPS, refine=False, duration=0.5, seeds=1)
        cells = CELLS[2:3]
    rows_of = f"{commit_of(version) or 'unknown'} (code {version})" if version else ""
    document = Document(out / "RESULT.md", "EcoServe's evaluation, simulated with our cores", told, rows_of)
    document.section("What was done", NOTES)
    for name in arguments.parts:
        document.plan(name, f"part `{name}`")
    if "goodput" in arguments.parts and not arguments.quick and len(cells) < len(CELLS):
        document.plan("rest", "goodput of " + "; ".join(f"{m} on {c}, {d}" for c, m, d, _ in CELLS[len(cells) :]))
    seen = Seen()
    for name in arguments.parts:
        if name == "goodput":
            goodput(document, budget, seen, cells)
        else:
            ALL[name](document, budget, seen)
        document.done(name)
        document.replace("What it says", *reading(seen))


def _parser() -> argparse.ArgumentParser:
    parser = parser_of("ecoserve", __doc__)
    parser.add_argument(
        "--quick", action="store_true", help="two rates, one set-up, short runs: whether it works at all"
    )
    parser.add_argument("--coarse", action="store_true", help="four rates, runs of two lifetimes of a request")
    parser.add_argument("--parts", nargs="+", choices=ALL, default=list(ALL), help="to be run (default all)")
    parser.add_argument(
        "--cells",
        type=int,
        default=len(CELLS),
        metavar="N",
        help="set-ups of goodput, the most telling first (default all %(default)s)",
    )
    add_stored(parser, " but mitosis")
    add_seeds(parser, 1, "runs of each rate")
    add_workers(parser)
    add_store(parser, "ecoserve")
    add_out(parser, HERE, "RESULT.md and the pictures")
    return parser


if __name__ == "__main__":
    end("ecoserve", main)
