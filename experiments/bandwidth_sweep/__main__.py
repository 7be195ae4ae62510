"""`python -m experiments.bandwidth_sweep`: where handing KV over pays, measured on links of many rates.

Real processes, one network namespace for each replica, every host's link shaped by the kernel. The same requests at
every rate, in each layout forced and as the router chooses (`auto`). Results: a table, `sweep.csv` and `sweep.png`.
A sweep that was interrupted goes on where it was when the same command is given again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from contracts.errors import ConfigError
from contracts.phase import Layout
from experiments.bandwidth_sweep import plot
from experiments.bandwidth_sweep.arguments import options_of, parser
from experiments.bandwidth_sweep.crossover import Verdict, judge, level_without_handoff, predicted_crossover
from experiments.bandwidth_sweep.fleets import groups, running
from experiments.bandwidth_sweep.measure import SweepError, measure
from experiments.bandwidth_sweep.options import AUTO, Options
from experiments.bandwidth_sweep.progress import Progress
from experiments.bandwidth_sweep.store import Store, as_csv, write_whole
from experiments.bandwidth_sweep.summary import Summary, summarize
from experiments.bandwidth_sweep.table import table, verdict_text
from experiments.bandwidth_sweep.workload import arrivals
from experiments.load.command_line import end
from experiments.load.machine import describe_machine
from experiments.network.fleet import FleetError
from experiments.network.lan import LanError, missing, reexec_as_own_root
from simulator.drawing import missing as drawing_missing

EXIT_FAILED, EXIT_REFUSED = 1, 2
MODULE = "experiments.bandwidth_sweep"


def main(words: Sequence[str]) -> int:
    """Measure what is missing, print what there is. Exit code 2 where something needed is not there."""
    asked = parser(f"python -m {MODULE}", __doc__).parse_args(words)
    try:
        options = options_of(asked)
        reexec_as_own_root([sys.executable, "-P", "-m", MODULE, *words])
        reason = missing()
        if reason is not None:
            raise LanError(reason)
        store = Store(asked.out, options)
    except (ConfigError, LanError) as error:
        print(f"sweep: {error}", file=sys.stderr)
        return EXIT_REFUSED
    no_picture = drawing_missing()
    if no_picture is not None:
        print(f"sweep: no picture will be drawn: {no_picture}", file=sys.stderr)
    try:
        sweep(options, store)
    except (FleetError, LanError, SweepError) as error:
        print(
            f"sweep: {error}\nPoints measured so far are in {store.folder}; the same command goes on.", file=sys.stderr
        )
        return EXIT_FAILED
    report(options, store, with_picture=no_picture is None)
    return 0


def sweep(options: Options, store: Store) -> None:
    """Every point that is not in `store` yet, fleet by fleet."""
    asked = arrivals(options.workload)
    todo = {
        (mode, rate)
        for _, modes in groups(options)
        for mode in modes
        for rate in options.mbit_per_s
        if not store.has(mode, rate)
    }
    progress = Progress(len(todo))
    for roles, modes in groups(options):
        if not any(mode in modes for mode, _ in todo):
            continue
        with running(roles, options) as fleet:
            for rate in options.mbit_per_s:
                for mode in modes:
                    if (mode, rate) in todo:
                        progress.next(mode, rate)
                        store.add(measure(fleet, options, asked, mode, rate))
                        progress.done()
    progress.end()


def report(options: Options, store: Store, *, with_picture: bool) -> None:
    """Table, verdict, CSV and picture of all points."""
    summaries = [summarize(point, options.slo) for point in store.points]
    verdict = verdict_of(options, store, summaries)
    print(describe_machine())
    print(table(summaries, options))
    print(verdict_text(verdict, options))
    write_whole(store.folder / "sweep.csv", as_csv(summaries).encode())
    written = [store.folder / "sweep.csv"]
    if with_picture:
        write_whole(store.folder / "sweep.png", plot.draw(summaries, verdict, options))
        written.append(store.folder / "sweep.png")
    print(f"written: {', '.join(map(str, written))}")


def verdict_of(options: Options, store: Store, summaries: Sequence[Summary]) -> Verdict:
    """The criteria, the crossover predicted with the step cost that the prefill replica had learnt."""
    level = level_without_handoff(summaries)
    pools = [point for point in store.points if point.mode in (Layout.DISAGGREGATED.value, AUTO)]
    predicted = None
    if level is not None and pools:
        predicted = predicted_crossover(
            arrivals(options.workload),
            max(pools, key=lambda point: point.mbit_per_s).cost,
            options.kv_layout,
            options.slo,
            givers=options.replicas // 2,
            level=level,
            rates=options.mbit_per_s,
        )
    return judge(summaries, predicted)


if __name__ == "__main__":
    end("bandwidth_sweep", lambda: main(sys.argv[1:]))
