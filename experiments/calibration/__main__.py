"""Live runs of this engine against the simulator with the cost model that was fitted to it here.

One `phaseserve profile` (with a busy neighbour, as two replicas of one machine have), then a live fleet of two replicas
for each layout under each load, then the same requests and settings through the simulator. What the live system adds to
its steps (messages, turns of the loop, the rate of the links, cores that router and client use) is measured apart. The
same with engines that only sleep tells what of an error is the steps' cost and what is not. Prints as it goes and
writes RESULT.md and a picture; the live runs are kept in runs/ beside them.

    python -m experiments.calibration              under 10 minutes; nothing else should run on the machine
    python -m experiments.calibration --quick      two minutes, to see that it works
    python -m experiments.calibration --again      the last live runs once more through the simulator
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from contracts.errors import ConfigError
from contracts.request import Slo
from experiments.calibration.compare import Cell, cells, within
from experiments.calibration.live import (
    IDLE_OUTPUT,
    IDLE_PROMPT,
    Idle,
    LivePoint,
    Record,
    profile,
    run_layout,
    sleeping,
)
from experiments.calibration.report import FITTED, PICTURE, SLEEP, TABLE, draw, write_report
from experiments.calibration.simulated import ROLES
from experiments.load.command_line import add_out, add_seeds, end, out_folder, parser_of
from experiments.macro_live.serving import Setup
from simulator.cost_file import read_cost_file

HERE = Path(__file__).parent
KEPT = "runs"
SLO = Slo(ttft_s=1.0, tpot_s=0.1)
ENGINE = "engine"
SLEEP_RATES, SLEEP_S = [4.0], 15.0


def parse(words: Sequence[str]) -> argparse.Namespace:
    """The command line; `out` is there."""
    parser = parser_of("calibration", __doc__)
    parser.add_argument(
        "--layouts",
        nargs="+",
        choices=tuple(ROLES),
        default=list(ROLES),
        help="two replicas: alternating, mixed, or one prefill with one decode replica (default all three)",
    )
    parser.add_argument(
        "--rates",
        nargs="+",
        type=float,
        default=[2.0, 4.0, 6.0],
        metavar="PER_S",
        help="requests a second, a live run of each on every layout (default 2 4 6)",
    )
    parser.add_argument("--seconds", type=float, default=30.0, help="of arrivals, for each point (default %(default)g)")
    parser.add_argument(
        "--repeats", type=int, default=6, metavar="N", help="steps of each point of the profile (default %(default)s)"
    )
    add_seeds(parser, 3, "simulated runs of each point")
    parser.add_argument(
        "--quantization", choices=("none", "int8"), default="int8", help="of the weights (default %(default)s)"
    )
    parser.add_argument(
        "--only", choices=(ENGINE, SLEEP), help="one half: the engine, or engines that sleep (default both)"
    )
    parser.add_argument("--quick", action="store_true", help="one rate, short")
    parser.add_argument(
        "--again", action="store_true", help="no live runs: those of the last time, with --quick or --out as then"
    )
    parser.add_argument("--no-report", action="store_true", help="print only")
    add_out(parser, HERE, "RESULT.md, the picture and runs/")
    options = parser.parse_args(words)
    if min(options.rates) <= 0.0 or options.seconds <= 0.0 or min(options.repeats, options.seeds) < 1:
        parser.error("rates, seconds, repeats and seeds must be positive")
    if options.quick:
        options.rates, options.seconds, options.repeats, options.seeds = [3.0], 10.0, 2, 2
    options.out = out_folder(parser, options, HERE)
    return options


def run(words: Sequence[str]) -> int:
    """Measure, simulate, compare."""
    options = parse(words)
    _run(options, " ".join(["python -m experiments.calibration", *words]))
    return 0


def _run(options: argparse.Namespace, command: str) -> None:
    """Raises `ConfigError` where earlier runs are asked for and there are none."""
    kept: Path = options.out / KEPT
    kept.mkdir(exist_ok=True)
    began = time.monotonic()
    found: dict[str, list[Cell]] = {}
    for half in [options.only] if options.only else [SLEEP, ENGINE]:
        if not options.again:
            _measure(options, half, kept)
        for kind in [SLEEP] if half == SLEEP else [FITTED, TABLE]:
            found[kind] = _compare(options, half, kind, kept)
    took_s = time.monotonic() - began
    _say(f"{took_s:.0f} s in all")
    if FITTED in found and not options.no_report:
        record, costs = _kept(kept, ENGINE)
        drawn = draw(options.out / PICTURE, {kind: found[kind] for kind in (FITTED, TABLE)})
        write_report(options.out / "RESULT.md", record, read_cost_file(costs), found, command, took_s, drawn=drawn)


def _compare(options: argparse.Namespace, half: str, kind: str, kept: Path) -> list[Cell]:
    record, costs = _kept(kept, half)
    cost = read_cost_file(costs)
    if half == ENGINE:
        cost = cost.refitted(kind)
    _say(f"{kind}: {cost.about}; off by {cost.residuals.mape:.1%}, {cost.residuals.p95:.1%} at P95")
    with tempfile.TemporaryDirectory() as folder:
        found = cells(record, cost, options.seeds, (IDLE_PROMPT, IDLE_OUTPUT), Path(folder), _say)
    good, every = within(found)
    _say(f"{kind}: {good} of {every} quantiles within 10 %")
    return found


def _measure(options: argparse.Namespace, half: str, kept: Path) -> None:
    costs = kept / f"{half}-cost.json"
    idle: list[Idle] = []
    points: list[LivePoint] = []
    with tempfile.TemporaryDirectory() as logs:
        if half == SLEEP:
            setup = Setup(engine="fake", quantization=options.quantization, slo=SLO, settings=sleeping(costs))
            rates, seconds = SLEEP_RATES, SLEEP_S
        else:
            profile(options.quantization, options.repeats, costs)
            # A pool that was never written costs a page fault a page: prefill took a third longer until all of it was.
            setup = Setup(
                engine="torch", quantization=options.quantization, slo=SLO, settings=("engine.prefault=true",)
            )
            rates, seconds = options.rates, options.seconds
        for layout in options.layouts:
            for one in run_layout(setup, layout, rates, seconds, Path(logs), 0, _say):
                if isinstance(one, Idle):
                    idle.append(one)
                    _say(f"{half}, {layout}, idle: TTFT {1e3 * one.ttft_s:.1f} ms, TPOT {1e3 * one.tpot_s:.1f} ms")
                else:
                    points.append(one)
    record = Record(slo=SLO, idle=tuple(idle), points=tuple(points), cores=os.cpu_count() or 1)
    (kept / f"{half}.json").write_bytes(msgspec.json.encode(record))


def _kept(folder: Path, half: str) -> tuple[Record, Path]:
    """Raises `ConfigError`."""
    path = folder / f"{half}.json"
    if not path.is_file():
        raise ConfigError(f"there are no live runs in {path}", param="again")
    return msgspec.json.decode(path.read_bytes(), type=Record), folder / f"{half}-cost.json"


def _say(words: str) -> None:
    print(words, flush=True)


if __name__ == "__main__":
    end("calibration", lambda: run(sys.argv[1:]))
