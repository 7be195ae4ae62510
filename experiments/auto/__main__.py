"""`python -m experiments.auto`: `auto` against the best static layout known in hindsight.

All four recorded traces (time-scaled, prefix hashes used) over several link rates, and loads that change while they
run. RESULT.md and the pictures are written again whenever a trace or a changing load is done.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.auto.fleets import auto_fleet, static_fleets
from experiments.auto.loads import changing, recorded
from experiments.auto.pictures import draw_changed, draw_scans
from experiments.auto.report import Changed, Planned, write_result
from experiments.auto.runs import Runner, Scan

HERE = Path(__file__).parent
STORE = HERE.parents[1] / "results" / "auto.jsonl"
LINKS_GBIT = (10.0, 100.0, 1.0)
CHANGING_GBIT = 25.0


def main() -> None:
    """The traces over the first link, then the changing loads, then the traces over the other links."""
    parser = argparse.ArgumentParser(prog="python -m experiments.auto", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one trace over the first link and one changing load")
    parser.add_argument("--traces", type=Path, default=Path("../shared/traces"), help="folder of the recorded traces")
    parser.add_argument("--parts", nargs="+", choices=("changing", "traces"), default=("changing", "traces"))
    parser.add_argument("--links", type=float, nargs="+", default=LINKS_GBIT, help="Gbit/s of each host")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=2, help="of the changing loads")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE, help="rows of finished runs; a killed run goes on from it")
    parser.add_argument("--out", type=Path, default=HERE)
    words = parser.parse_args()
    words.store.parent.mkdir(parents=True, exist_ok=True)
    words.out.mkdir(parents=True, exist_ok=True)
    runner = Runner(words.store, words.workers, words.replicas)
    fleets = [*static_fleets(words.replicas), auto_fleet(words.replicas)]
    loads = recorded(words.traces)
    written = changing(words.store.parent / "auto", 0)
    planned = Planned(
        traces=tuple((load.name, link) for link in LINKS_GBIT for load in loads),
        changing=tuple((load.name, seed) for seed in range(2) for load in written),
    )
    scans: list[Scan] = []
    changed: list[Changed] = []

    def trace_runs(links: tuple[float, ...]) -> None:
        for link in links if "traces" in words.parts else ():
            for load in loads[:1] if words.quick else loads:
                scans.extend(runner.scans(load, link))
                draw_scans(words.out, scans)
                write_result(words.out, scans, changed, planned)

    links = tuple(words.links)
    trace_runs(links[:1])
    for seed in range(1 if words.quick else words.seeds) if "changing" in words.parts else ():
        for load in changing(words.store.parent / "auto", seed)[: 1 if words.quick else None]:
            rows = tuple(runner.once(load, CHANGING_GBIT, fleets))
            changed.append(Changed(load=load, seed=seed, rows=rows))
            print(changed[-1].told(), flush=True)
            draw_changed(words.out, changed[-1])
            write_result(words.out, scans, changed, planned)
    if not words.quick:
        trace_runs(links[1:])


if __name__ == "__main__":
    main()
