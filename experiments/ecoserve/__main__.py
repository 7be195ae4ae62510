"""Run the evaluation, or parts of it, and write RESULT.md.

    python -m experiments.ecoserve [--quick] [--parts goodput scaling ...] [--seeds 2] [--cells 3]

Rows are kept in `results/ecoserve.jsonl`: a run that was stopped goes on where it was. An hour or two on one core.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec

from experiments.ecoserve.document import Document, command
from experiments.ecoserve.mitosis import mitosis
from experiments.ecoserve.notes import NOTES
from experiments.ecoserve.parts import CELLS, PARTS, goodput
from experiments.ecoserve.reading import READING
from experiments.ecoserve.scan import COARSE_STEPS, QUICK_STEPS, Budget

HERE = Path(__file__).parent
ALL = {"mitosis": mitosis, **PARTS}


def main() -> None:
    """Print tables as they come."""
    parser = argparse.ArgumentParser(prog="python -m experiments.ecoserve", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--quick", action="store_true", help="two rates, one set-up, short runs: whether it works at all"
    )
    parser.add_argument("--coarse", action="store_true", help="four rates, two lifetimes, at most four replicas")
    parser.add_argument("--parts", nargs="+", choices=ALL, default=list(ALL))
    parser.add_argument("--cells", type=int, default=len(CELLS), help="set-ups of goodput, the most telling first")
    parser.add_argument("--stored", action="store_true", help="show what the store holds, run nothing but mitosis")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=Path("results/ecoserve.jsonl"))
    parser.add_argument("--out", type=Path, default=HERE, help="where RESULT.md and the picture go")
    arguments = parser.parse_args()
    arguments.store.parent.mkdir(parents=True, exist_ok=True)
    budget = Budget(seeds=arguments.seeds, store=arguments.store, workers=arguments.workers)
    budget = msgspec.structs.replace(budget, stored_only=arguments.stored)
    cells = CELLS[: arguments.cells]
    if arguments.coarse:
        budget = msgspec.structs.replace(budget, steps=COARSE_STEPS, duration=2.0, most_replicas=4)
    if arguments.quick:
        budget = Budget(store=arguments.store, steps=QUICK_STEPS, refine=False, duration=0.5)
        cells = CELLS[2:3]
    told = command("experiments.ecoserve", sys.argv[1:])
    document = Document(arguments.out / "RESULT.md", "EcoServe's evaluation, simulated with our cores", told)
    document.section("What was done", NOTES)
    for name in arguments.parts:
        document.plan(name, f"part `{name}`")
    for name in arguments.parts:
        if name == "goodput" and not arguments.quick and len(cells) < len(CELLS):
            document.plan("rest", "goodput of " + "; ".join(f"{m} on {c}, {d}" for c, m, d, _ in CELLS[len(cells) :]))
        if name == "goodput":
            goodput(document, budget, cells)
        else:
            ALL[name](document, budget)
        document.done(name)
    if not arguments.quick:
        document.section("What it says", READING)


if __name__ == "__main__":
    main()
