"""Run the evaluation, or parts of it, and write RESULT.md.

    python -m experiments.ecoserve [--quick] [--coarse] [--parts goodput scaling ...] [--seeds 2] [--cells 3]
    python -m experiments.ecoserve --stored [--coarse] [--version HASH]

Rows are kept in `results/ecoserve.jsonl`: a run that was stopped goes on where it was. An hour or two on one core.
With `--stored` nothing is run: rows of the one version of the code that the store holds are shown, or of `--version`,
with the other options as they were run with.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from experiments.ecoserve.document import Document, command
from experiments.ecoserve.mitosis import mitosis
from experiments.ecoserve.notes import NOTES
from experiments.ecoserve.parts import CELLS, PARTS, goodput
from experiments.ecoserve.reading import reading
from experiments.ecoserve.scan import COARSE_STEPS, QUICK_STEPS, Budget
from experiments.ecoserve.seen import Seen
from experiments.ecoserve.versions import chosen, commit_of

HERE = Path(__file__).parent
ALL = {"mitosis": mitosis, **PARTS}


def main() -> int:
    """Print tables as they come."""
    arguments = _parser().parse_args()
    try:
        return _run(arguments)
    except ConfigError as error:
        print(f"experiments.ecoserve: {error}", file=sys.stderr)
        return 2


def _run(arguments: argparse.Namespace) -> int:
    """Raises `ConfigError` for a store that cannot be used."""
    if arguments.version and not arguments.stored:
        raise ConfigError("--version goes with --stored", param="version")
    arguments.store.parent.mkdir(parents=True, exist_ok=True)
    version = chosen(arguments.store, arguments.version) if arguments.stored else ""
    budget = Budget(seeds=arguments.seeds, store=arguments.store, workers=arguments.workers, version=version)
    cells = CELLS[: arguments.cells]
    if arguments.coarse:
        budget = msgspec.structs.replace(budget, steps=COARSE_STEPS, duration=2.0, most_replicas=4)
    if arguments.quick:
        budget = msgspec.structs.replace(budget, steps=QUICK_STEPS, refine=False, duration=0.5, seeds=1)
        cells = CELLS[2:3]
    rows_of = f"{commit_of(version) or 'unknown'} (code {version})" if version else ""
    told = command("experiments.ecoserve", sys.argv[1:])
    document = Document(arguments.out / "RESULT.md", "EcoServe's evaluation, simulated with our cores", told, rows_of)
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
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m experiments.ecoserve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two rates, one set-up, short runs: whether it works at all"
    )
    parser.add_argument("--coarse", action="store_true", help="four rates, two lifetimes, at most four replicas")
    parser.add_argument("--parts", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--cells", type=int, default=len(CELLS), help="set-ups of goodput, the most telling first")
    parser.add_argument("--stored", action="store_true", help="show what the store holds, run nothing but mitosis")
    parser.add_argument("--version", default="", help="with --stored: of this version of the code, or this commit")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=Path("results/ecoserve.jsonl"))
    parser.add_argument("--out", type=Path, default=HERE, help="where RESULT.md and the picture go")
    return parser


if __name__ == "__main__":
    sys.exit(main())
