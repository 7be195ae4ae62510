"""Measure how fast simulations run and what they need, and write RESULT.md.

    python -m experiments.scale --traces FOLDER [--quick] [--vidur PYTHON] [--parts vidur requests replicas memory]

`--vidur` names the Python of an environment in which `pip install vidur` was done; without it that part is left out.
Measurements are kept in `results/scale.jsonl`: a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from experiments.ecoserve.document import Document
from experiments.scale.measuring import Store
from experiments.scale.parts import PARTS, Asked, notes

HERE = Path(__file__).parent


def main() -> None:
    """Print tables as they come."""
    parser = argparse.ArgumentParser(prog="python -m experiments.scale", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small numbers: whether it works at all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="where the Azure traces are")
    parser.add_argument("--vidur", default="", help="Python of an environment with Vidur")
    parser.add_argument("--requests", type=int, default=1_000_000, help="of parts requests and replicas")
    parser.add_argument("--repeats", type=int, default=3, help="of part vidur, taking turns")
    parser.add_argument("--store", type=Path, default=Path("results/scale.jsonl"))
    parser.add_argument("--out", type=Path, default=HERE, help="where RESULT.md goes")
    options = parser.parse_args()
    words = [word for word in sys.argv[1:] if "/" not in word or word.startswith("--")]
    document = Document(
        options.out / "RESULT.md", "Speed and size of simulations", " ".join(["python -m experiments.scale", *words])
    )
    document.section("What was done", *notes())
    for name in options.parts:
        document.plan(name, f"part `{name}`")
    asked = Asked(
        traces=options.traces.resolve(),
        vidur=options.vidur,
        requests=20_000 if options.quick else options.requests,
        repeats=1 if options.quick else options.repeats,
        quick=options.quick,
        store=Store(options.store),
    )
    for name in options.parts:
        if PARTS[name](document, asked):
            document.done(name)


if __name__ == "__main__":
    main()
