"""Mitosis, simulated: a fleet grows from 8 to 16 alternating replicas and shrinks back while the load goes up and down.

    python -m experiments.macro.mitosis [--low 20] [--high 50] [--step 60]

Bounds of macro instances (6, 11): the twelfth replica makes two of 6, and when 11 are left they merge. Replicas are
added one each `--each` seconds from when the load rises, and drained likewise from when it falls. Printed: how the
sizes change, attainment of each 30 s of arrivals, P50/P90/P99 by the usual clock, and the longest time below 90 %.
"""

from __future__ import annotations

import argparse

import msgspec

from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from scheduling.macro_config import MacroConfig
from simulator.arrivals import Steps
from simulator.changes import Add, Drain
from simulator.report import Report
from simulator.run import Run
from simulator.scenario import Scenario
from simulator.scenarios import small

FEW, MANY = 8, 16


def scenario(low: float, high: float, step_s: float, each_s: float, seed: int) -> Scenario:
    """`low` requests a second, `high`, `low` again, `step_s` seconds each."""
    made = small(
        alternating=FEW,
        arrivals=Steps(rates=(low, high, low), step_s=step_s),
        duration_s=3 * step_s,
        seed=seed,
        scheduling=ReplicaCoreConfig(max_running=256, max_chunk=2048, prefix_cache=False),
        cluster=ClusterCoreConfig(prefill_chunk=2048, macro=MacroConfig(least=6, most=11, cooldown_s=5.0)),
    )
    changes: list[Add | Drain] = [Add(at_s=step_s + each_s * index) for index in range(MANY - FEW)]
    changes += [
        Drain(at_s=2 * step_s + each_s * (index + 1), replica_id=f"alternating-{MANY - 1 - index}")
        for index in range(MANY - FEW)
    ]
    return msgspec.structs.replace(made, changes=tuple(changes), window_s=30.0)


def sizes_over_time(made: Scenario, every_s: float = 0.5) -> tuple[list[tuple[float, list[int]]], Report]:
    """When the sizes of macro instances changed, and the report."""
    run = Run(made)
    seen: list[tuple[float, list[int]]] = []

    def look() -> None:
        sizes = sorted(len(macro) for macro in run.fleet.router.core.placement.fleet.macros)
        if not seen or seen[-1][1] != sizes:
            seen.append((run.clock.now, sizes))
        if run.clock.now < made.duration_s + 30.0:
            run.clock.at(run.clock.now + every_s, look)

    run.clock.at(made.start_s, look)
    return seen, run.finish()


def main() -> None:
    """Print what happened as Markdown."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--low", type=float, default=20.0)
    parser.add_argument("--high", type=float, default=50.0)
    parser.add_argument("--step", type=float, default=60.0, help="seconds of each load")
    parser.add_argument("--each", type=float, default=2.0, help="seconds between two replicas")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    seen, report = sizes_over_time(
        scenario(arguments.low, arguments.high, arguments.step, arguments.each, arguments.seed)
    )
    print("sizes: " + "; ".join(f"{at_s:.1f} s {'+'.join(map(str, sizes))}" for at_s, sizes in seen))
    print("\n| arrivals from | requests | attained |\n| ---: | ---: | ---: |")
    for window in report.windows:
        share = 100 * window.attained / max(1, window.arrived)
        print(f"| {window.from_s:.0f} s | {window.arrived} | {share:.1f} % |")
    ttft, tpot = report.usual.ttft_s, report.usual.tpot_s
    print(f"\nTTFT P50/P90/P99 {ttft.p50:.2f} / {ttft.p90:.2f} / {ttft.p99:.2f} s, ", end="")
    print(f"TPOT {tpot.p50 * 1e3:.0f} / {tpot.p90 * 1e3:.0f} / {tpot.p99 * 1e3:.0f} ms, ", end="")
    print(f"attained {100 * report.usual.attained:.1f} % (usual), {100 * report.ecoserve.attained:.1f} % (EcoServe), ")
    print(f"below 90 % for at most {report.recovery_s:.0f} s, refused {sum(report.refused.values())}")


if __name__ == "__main__":
    main()
