"""`python -m experiments.auto`: `auto` against the best static layout known in hindsight.

All four recorded traces (time-scaled, prefix hashes used) over several link rates, and loads that change while they
run. RESULT.md is written again whenever a trace or a changing load is done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.auto.fleets import auto_fleet, static_fleets
from experiments.auto.loads import changing, recorded
from experiments.auto.report import Changed, write_result
from experiments.auto.runs import Runner, Scan

HERE = Path(__file__).parent
STORE = HERE.parents[1] / "results" / "auto.jsonl"
LINKS_GBIT = (10.0, 100.0, 1.0, 25.0, 0.1)
CHANGING_GBIT = 25.0


def main() -> None:
    """Changing loads first, then link by link, trace by trace."""
    parser = argparse.ArgumentParser(prog="python -m experiments.auto", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one changing load and one trace over two links")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="folder of the recorded traces")
    parser.add_argument("--parts", nargs="+", choices=("changing", "traces"), default=("changing", "traces"))
    parser.add_argument("--links", type=float, nargs="+", default=LINKS_GBIT, help="Gbit/s of each host")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--requests", type=int, default=600, help="of each trace (Mooncake: a third of it)")
    parser.add_argument("--seeds", type=int, default=2, help="of the changing loads")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE, help="rows of finished runs; a killed run goes on from it")
    parser.add_argument("--out", type=Path, default=HERE)
    words = parser.parse_args()
    words.store.parent.mkdir(parents=True, exist_ok=True)
    words.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(words.store, words.workers, words.replicas)
    fleets = [*static_fleets(words.replicas), auto_fleet(words.replicas)]
    loads = recorded(words.traces, words.requests)
    num_changing = 1 if words.quick else len(changing(words.store.parent / "auto", 0))
    if "changing" not in words.parts:
        num_changing = 0
    if "traces" not in words.parts:
        loads = []
    scans: list[Scan] = []
    changed: list[Changed] = []
    for index in range(num_changing):
        for seed in range(1 if words.quick else words.seeds):
            load = changing(words.store.parent / "auto", seed)[index]
            changed.append(Changed(load=load, seed=seed, rows=tuple(runner.once(load, CHANGING_GBIT, fleets))))
            print(changed[-1].told(), flush=True)
            write_result(words.out, scans, changed, words.requests)
    for link in words.links[:2] if words.quick else words.links:
        for load in loads[:1] if words.quick else loads:
            scans += runner.scans(load, link)
            write_result(words.out, scans, changed, words.requests)


if __name__ == "__main__":
    main()
