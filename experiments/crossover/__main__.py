"""`python -m experiments.crossover`: the link rate at which each layout takes over, by formula and simulated.

The formula is evaluated for every model on every hardware that holds it under every load; the simulator runs the picks
of `experiments.crossover.simulated`. Results go to `experiments/crossover/`: RESULT.md, predicted.csv, crossover.png.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from experiments.crossover.formula import Forecast, forecast
from experiments.crossover.loads import LOADS
from experiments.crossover.picture import draw_map
from experiments.crossover.report import write_csv, write_result
from experiments.crossover.simulated import PICKS, Found, find
from experiments.crossover.sites import HARDWARE, MODELS, Place, place

HERE = Path(__file__).parent
STORE = HERE.parents[1] / "results" / "crossover.jsonl"


def main() -> None:
    """Predict all, simulate the picks, write the result again after each of them."""
    parser = argparse.ArgumentParser(prog="python -m experiments.crossover", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="simulate the first pick only, one seed")
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--store", type=Path, default=STORE, help="rows of finished runs; a killed run goes on from it")
    parser.add_argument("--out", type=Path, default=HERE)
    words = parser.parse_args()
    words.store.parent.mkdir(parents=True, exist_ok=True)
    words.out.mkdir(parents=True, exist_ok=True)
    places = [place(model, hardware) for model in MODELS for hardware in HARDWARE]
    forecasts = predicted(places, words.replicas)
    write_csv(words.out / "predicted.csv", forecasts)
    draw_map(words.out / "crossover.png", words.replicas)
    picks = PICKS[:1] if words.quick else PICKS
    found: list[Found] = []
    write_result(words.out / "RESULT.md", places, forecasts, found, words.replicas, words.seeds, len(picks))
    for pick in picks:
        found += find(pick, words.replicas, 1 if words.quick else words.seeds, words.store, words.workers)
        for one in found:
            if one.pick == pick:
                print(pick.model, pick.hardware, pick.load, one.layout, one.link_gbit, one.mix, end=": ")
                print(f"predicted {one.predicted:.2f}, goodput {one.goodput:.2f}, usual {one.usual:.2f}", flush=True)
        write_result(words.out / "RESULT.md", places, forecasts, found, words.replicas, words.seeds, len(picks))


def predicted(places: list[Place], replicas: int) -> list[Forecast]:
    """All loads on all places that hold their model."""
    return [forecast(there, load, replicas) for there in places if there.deployment is not None for load in LOADS]


if __name__ == "__main__":
    main()
