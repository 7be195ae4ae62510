"""Goodput of each admission rule, simulated: scanned rates, both clocks, several seeds, one table.

    python -m experiments.macro.rules [--lengths sharegpt] [--rates 16 20 24 28] [--slo-scale 1 0.5] [--seeds 2]

Every rule runs as a whole policy (`scheduling.policies`) on the same fleet, costs, arrivals and lengths. Attainment is
that of the requests that came after a quarter of the time, when streams have gathered. A dip is a rate below the
goodput at which attainment is lower than the share asked for.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import msgspec

from contracts.request import Slo
from scheduling.admission_rules import parse_rule
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.goodput import Goodput, Point, at_rate, goodput_of
from simulator.lengths import Lengths
from simulator.run import simulate
from simulator.scenario import Scenario
from simulator.scenarios import (
    ALPACA_OUTPUT,
    ALPACA_PROMPT,
    LONGBENCH_OUTPUT,
    LONGBENCH_PROMPT,
    SHAREGPT_OUTPUT,
    SHAREGPT_PROMPT,
    small,
    under,
)

RULES = (
    *("min", "min, whole", "quantile(0.1)", "quantile(0.25)", "mean", "ecoserve_paper", "ecoserve_artifact"),
    *("fixed_interval(0.25)", "fixed_interval(0.5)", "fixed_interval(1)"),
    *("deadline", "sarathi(512)", "prefill_priority"),
)
WHOLE = ", whole"
"""Behind the name of a rule: prompts are not cut."""


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Lengths and the targets that go with them (EcoServe, OSDI'26, table 5), and rates around the goodput of eight
    replicas."""

    prompt: Lengths
    output: Lengths
    slo: Slo
    rates: tuple[float, ...]


LOADS = {
    "sharegpt": Load(
        prompt=SHAREGPT_PROMPT, output=SHAREGPT_OUTPUT, slo=Slo(ttft_s=5.0, tpot_s=0.1), rates=(16.0, 20.0, 24.0, 28.0)
    ),
    "alpaca": Load(
        prompt=ALPACA_PROMPT, output=ALPACA_OUTPUT, slo=Slo(ttft_s=1.0, tpot_s=0.1), rates=(32.0, 48.0, 64.0)
    ),
    "longbench": Load(
        prompt=LONGBENCH_PROMPT, output=LONGBENCH_OUTPUT, slo=Slo(ttft_s=15.0, tpot_s=0.1), rates=(3.0, 5.0, 7.0)
    ),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What all rules share."""

    load: Load
    replicas: int = 8
    slo_scale: float = 1.0
    seeds: int = 2
    duration_s: float = 60.0


def scenario(rule: str, settings: Settings) -> Scenario:
    """The fleet under a rule; the rate is set later."""
    load, scale = settings.load, settings.slo_scale
    made = under(
        small(
            alternating=settings.replicas,
            duration_s=settings.duration_s,
            prompt=load.prompt,
            output=load.output,
            slo=Slo(ttft_s=load.slo.ttft_s * scale, tpot_s=load.slo.tpot_s * scale),
            scheduling=ReplicaCoreConfig(max_running=256, max_chunk=2048, prefix_cache=False),
            cluster=ClusterCoreConfig(prefill_chunk=2048),
        ),
        rule.removesuffix(WHOLE),
    )
    if rule.endswith(WHOLE):
        made = msgspec.structs.replace(
            made,
            scheduling=msgspec.structs.replace(made.scheduling, window_chunking=False),
            cluster=msgspec.structs.replace(made.cluster, window_chunking=False),
        )
    return msgspec.structs.replace(made, warmup_s=settings.duration_s / 4)


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One rule: the scan by the usual clock, and in seconds at the highest rate P90 of TTFT and of TPOT."""

    rule: str
    scanned: Goodput
    scanned_ecoserve: Goodput
    ttft_p90_s: float
    tpot_p90_s: float
    error: float


def measure(rule: str, settings: Settings, rates: Sequence[float], share: float) -> Row:
    """Scan the rates; each point is the mean over the seeds, and the latencies are those of the last run."""
    base, points = scenario(rule, settings), []
    assert rates
    for rate in sorted(rates):
        reports = [
            simulate(msgspec.structs.replace(at_rate(base, rate), seed=seed)) for seed in range(max(1, settings.seeds))
        ]
        usual = sum(report.usual.attained for report in reports) / len(reports)
        ecoserve = sum(report.ecoserve.attained for report in reports) / len(reports)
        points.append(Point(rate, usual, ecoserve))
    last = reports[-1]
    swapped = [Point(point.rate, point.attained_ecoserve, point.attained) for point in points]
    return Row(
        rule=rule,
        scanned=goodput_of(points, share),
        scanned_ecoserve=goodput_of(swapped, share),
        ttft_p90_s=last.usual.ttft_s.p90,
        tpot_p90_s=last.usual.tpot_s.p90,
        error=last.prediction_error.p50,
    )


def line(row: Row) -> str:
    """One line of the table."""
    points = " | ".join(f"{100 * p.attained:.1f} / {100 * p.attained_ecoserve:.1f}" for p in row.scanned.points)
    dips = ", ".join(f"{rate:g}" for rate in row.scanned.dips) or "none"
    return (
        f"| `{row.rule}` | {row.scanned.goodput:g} / {row.scanned_ecoserve.goodput:g} | {points} | {dips} | "
        f"{row.ttft_p90_s:.2f} s | {row.tpot_p90_s * 1e3:.0f} ms | {100 * row.error:.0f} % |"
    )


def main() -> None:
    """Print one table for each SLO scale, a line as soon as it is known."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--lengths", choices=LOADS, default="sharegpt")
    parser.add_argument("--rules", nargs="+", default=list(RULES), help="names, with ', whole' for prompts not cut")
    parser.add_argument("--rates", type=float, nargs="+", help="requests per second")
    parser.add_argument("--slo-scale", type=float, nargs="+", default=[1.0], help="both targets are multiplied by it")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--duration", type=float, default=60.0, help="simulated seconds at each rate")
    parser.add_argument("--share", type=float, default=0.9, help="attainment that goodput asks for")
    arguments = parser.parse_args()
    load = LOADS[arguments.lengths]
    rates = sorted(arguments.rates or load.rates)
    for rule in arguments.rules:
        parse_rule(rule.removesuffix(WHOLE))
    for scale in arguments.slo_scale:
        settings = Settings(load=load, slo_scale=scale, seeds=arguments.seeds, duration_s=arguments.duration)
        heads = " | ".join(f"{rate:g} req/s" for rate in rates)
        print(f"\n{arguments.lengths}, targets {load.slo.ttft_s * scale:g} s and {load.slo.tpot_s * scale * 1e3:g} ms")
        print(f"\n| rule | goodput | {heads} | dips | TTFT P90 | TPOT P90 | TTFT error |")
        print("| --- | --- | " + "---: | " * (len(rates) + 4))
        for rule in arguments.rules:
            print(line(measure(rule, settings, rates, arguments.share)), flush=True)


if __name__ == "__main__":
    main()
