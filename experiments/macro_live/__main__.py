"""Two alternating replicas, two mixed ones, one prefill with one decode replica, live, under the same load.

Poisson and bursty (Gamma, CV 2) arrivals of two keys, one of which sends four of five requests. Each repeat starts each
layout once and sends it, at each rate, requests that are the same for every layout. Prints Markdown: attainment,
TTFT and TPOT on both clocks (first token; first decode step, as EcoServe counts), switch wait, longest gap and wait,
Jain's index over the keys' attainment, recovery after a burst, failures; `median (least-most)` over the repeats.

    python -m experiments.macro_live [--layouts alternating mixed 1p1d auto] [--rates 2 4] [--repeats 3]
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from pathlib import Path

from contracts.request import Slo
from experiments.load.command_line import end
from experiments.load.machine import describe_machine
from experiments.macro_live.figures import Figures, figures
from experiments.macro_live.serving import LAYOUTS, Setup, measured, serving
from experiments.macro_live.table import table
from experiments.macro_live.workload import LOADS, OUTPUT_TOKENS, PROMPT_TOKENS, asked


def parse(words: list[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.macro_live",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--layouts",
        nargs="+",
        choices=tuple(LAYOUTS),
        default=["alternating", "mixed", "1p1d"],
        help="fleets of two replicas (default alternating mixed 1p1d)",
    )
    parser.add_argument("--loads", nargs="+", choices=tuple(LOADS), default=list(LOADS), help="default all")
    parser.add_argument(
        "--rates",
        nargs="+",
        type=_positive,
        default=[2.0, 4.0],
        metavar="PER_S",
        help="requests a second (default 2 4)",
    )
    parser.add_argument("--seconds", type=_positive, default=14.0, help="of arrivals, for each point")
    parser.add_argument("--repeats", type=int, default=3, help="each with requests of its own")
    parser.add_argument("--targets", nargs=2, type=_positive, default=[1.0, 0.1], metavar=("TTFT_S", "TPOT_S"))
    parser.add_argument("--engine", choices=("torch", "fake"), default="torch")
    parser.add_argument("--quantization", choices=("none", "int8"), default="int8")
    parser.add_argument("--set", action="append", default=[], metavar="K=V", help="as for `phaseserve up`")
    parser.add_argument("--max-minutes", type=_positive, default=20.0, help="no point starts after so long")
    return parser.parse_args(words)


def run(words: list[str]) -> int:
    """Measure, print. 1 when time did not suffice for all points."""
    options = parse(words)
    slo = Slo(ttft_s=options.targets[0], tpot_s=options.targets[1])
    setup = Setup(engine=options.engine, quantization=options.quantization, slo=slo, settings=tuple(options.set))
    found: dict[tuple[str, str, float], list[Figures]] = {}
    began = time.monotonic()
    points = [(load, per_s) for load in options.loads for per_s in options.rates]
    left = options.repeats * len(options.layouts) * len(points)
    with tempfile.TemporaryDirectory() as logs:
        for repeat in range(options.repeats):
            for layout in options.layouts:
                if time.monotonic() - began > options.max_minutes * 60.0:
                    continue
                with serving(setup, layout, Path(logs)) as url:
                    for load, per_s in points:
                        if time.monotonic() - began > options.max_minutes * 60.0:
                            continue
                        requests = asked(load, per_s, options.seconds, repeat)
                        served = measured(url, requests, f"{load}-{per_s:g}-{repeat}")
                        one = figures(served, slo, options.seconds)
                        found.setdefault((load, layout, per_s), []).append(one)
                        left -= 1
                        _say(f"{layout} {load} {per_s:g}/s run {repeat + 1}: {one.on_time:.0%} on time, {left} left")
    print(
        f"{describe_machine()}; {options.engine}, quantization {options.quantization}. Targets: TTFT {slo.ttft_s:g} s,"
    )
    print(
        f"TPOT {slo.tpot_s:g} s. Prompts of {PROMPT_TOKENS} tokens, answers of {OUTPUT_TOKENS}, uniform; arrivals over"
    )
    print(f"{options.seconds:g} s a point. {time.monotonic() - began:.0f} s in all; {left} points not measured.\n")
    print(table(found))
    return int(left > 0)


def _say(words: str) -> None:
    print(words, file=sys.stderr, flush=True)


def _positive(word: str) -> float:
    value = float(word)
    if not value > 0.0:
        raise argparse.ArgumentTypeError("must be positive")
    return value


if __name__ == "__main__":
    end("macro_live", lambda: run(sys.argv[1:]))
