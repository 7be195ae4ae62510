"""The link rate at which each layout takes over, by formula and simulated.

The formula is evaluated for every model on every hardware that holds it under every load, which takes seconds; the
simulator runs the picks of `experiments.crossover.simulated`: some 250 runs, an hour or more on one core (`--quick`:
minutes).
RESULT.md, predicted.csv and crossover.png are written at once, RESULT.md again after each pick.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.crossover.formula import Forecast, forecast
from experiments.crossover.loads import LOADS
from experiments.crossover.picture import PICTURE, draw_map
from experiments.crossover.report import write_csv, write_result
from experiments.crossover.simulated import PICKS, Found, find
from experiments.crossover.sites import HARDWARE, MODELS, Place, place
from experiments.load.command_line import add_out, add_seeds, add_store, add_workers, count, end, out_folder, parser_of

HERE = Path(__file__).parent


def main(words: Sequence[str] | None = None) -> int:
    """Predict all, simulate the picks, write the result again after each of them."""
    parser = parser_of("crossover", __doc__)
    parser.add_argument("--quick", action="store_true", help="simulate the first pick only, one seed")
    parser.add_argument("--replicas", type=count, default=4, metavar="N", help="of the fleet (default %(default)s)")
    add_seeds(parser, 1, "runs of each simulated rate")
    add_workers(parser)
    add_store(parser, "crossover")
    add_out(parser, HERE, "RESULT.md, predicted.csv and crossover.png")
    options = parser.parse_args(words)
    out = out_folder(parser, options, HERE)
    seeds, picks = (1, PICKS[:1]) if options.quick else (options.seeds, PICKS)
    places = [place(model, hardware) for model in MODELS for hardware in HARDWARE]
    forecasts = predicted(places, options.replicas)
    write_csv(out / "predicted.csv", forecasts)
    draw_map(out / PICTURE, options.replicas)
    found: list[Found] = []
    write_result(out / "RESULT.md", places, forecasts, found, options.replicas, seeds, len(picks))
    for pick in picks:
        found += find(pick, options.replicas, seeds, options.store, options.workers)
        for one in found:
            if one.pick == pick:
                print(pick.model, pick.hardware, pick.load, one.layout, one.link_gbit, one.mix, end=": ")
                print(f"predicted {one.predicted:.2f}, goodput {one.goodput:.2f}, usual {one.usual:.2f}", flush=True)
        write_result(out / "RESULT.md", places, forecasts, found, options.replicas, seeds, len(picks))
    return 0


def predicted(places: list[Place], replicas: int) -> list[Forecast]:
    """All loads on all places that hold their model."""
    return [forecast(there, load, replicas) for there in places if there.deployment is not None for load in LOADS]


if __name__ == "__main__":
    end("crossover", main)
