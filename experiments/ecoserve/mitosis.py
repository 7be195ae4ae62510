"""Mitosis: the load goes up from 20 to 50 requests a second while the fleet grows from 8 to 16 replicas."""

from __future__ import annotations

import msgspec

from experiments.ecoserve.capacity import CHUNK
from experiments.ecoserve.scan import Budget
from experiments.ecoserve.seen import Mitosis, Seen
from experiments.ecoserve.setups import setup
from experiments.ecoserve.systems import scenario
from experiments.load.document import Document
from scheduling.macro_config import MacroConfig
from simulator.arrivals import Steps
from simulator.changes import Add
from simulator.grid.case import code_version
from simulator.report import Report
from simulator.run import Run
from simulator.scenario import Scenario

FEW, EACH_S = 8, 2.0
RATES = (20.0, 30.0, 40.0, 50.0)
SIZES = (8, 11, 14, 16)
"""Replicas at each rate."""


def made(step_s: float, seed: int = 0, rule: str = "min") -> Scenario:
    """Each rate for `step_s` seconds; what a rate needs more is added one by one as it begins. Bounds (6, 11)."""
    base = scenario(setup("L20", "codellama2-34b", "ShareGPT", FEW), rule)
    changes = [
        Add(at_s=1.0 + index * step_s + EACH_S * number)
        for index in range(1, len(RATES))
        for number in range(SIZES[index] - SIZES[index - 1])
    ]
    workload = msgspec.structs.replace(base.workload, arrivals=Steps(rates=RATES, step_s=step_s))
    cluster = msgspec.structs.replace(
        base.cluster, prefill_chunk=CHUNK, macro=MacroConfig(least=6, most=11, cooldown_s=5.0)
    )
    return msgspec.structs.replace(
        base,
        workload=workload,
        cluster=cluster,
        changes=tuple(changes),
        duration_s=len(RATES) * step_s,
        window_s=min(30.0, step_s / 2),
        seed=seed,
    )


def sizes_over_time(scenario: Scenario, every_s: float = 0.5) -> tuple[list[tuple[float, list[int]]], Report]:
    """When the sizes of macro instances changed, and the report."""
    run = Run(scenario)
    seen: list[tuple[float, list[int]]] = []

    def look() -> None:
        sizes = sorted(len(macro) for macro in run.fleet.router.core.placement.fleet.macros)
        if not seen or seen[-1][1] != sizes:
            seen.append((run.clock.now, sizes))
        if run.clock.now < scenario.duration_s + 30.0:
            run.clock.at(run.clock.now + every_s, look)

    run.clock.at(scenario.start_s, look)
    return seen, run.finish()


def mitosis(document: Document, budget: Budget, seen: Seen) -> None:
    """One run. It is not kept: where stored rows are shown of other code, it is not run."""
    if budget.version not in {"", code_version()}:
        document.plan("mitosis of other code", "part `mitosis`")
        return
    step_s = 15.0 * budget.duration  # the paper's 120 s would be 16,800 requests
    sizes, report = sizes_over_time(made(step_s))
    title = "Mitosis: 20 to 50 req/s, 8 to 16 replicas"
    grown = "; ".join(f"{at_s:.1f} s {'+'.join(map(str, each))}" for at_s, each in sizes)
    least = min((window.attained / window.arrived for window in report.windows if window.arrived), default=0.0)
    seen.mitosis = Mitosis(sizes=[each for _, each in sizes], lowest=least, attained=report.ecoserve.attained)
    document.section(
        title,
        f"CodeLlama2-34B on L20, ShareGPT, rates of {', '.join(f'{rate:g}' for rate in RATES)} req/s, {step_s:g} s "
        "each (the paper: 120 s); replicas are added one each 2 s as a rate begins, bounds (6, 11).",
        "",
        f"Macro instances: {grown}.",
        "",
        "| arrivals from | requests | attained |",
        "| ---: | ---: | ---: |",
        *(f"| {w.from_s:.0f} s | {w.arrived} | {100 * w.attained / max(1, w.arrived):.1f} % |" for w in report.windows),
        "",
        f"Attained {100 * report.usual.attained:.1f} % (usual clock), {100 * report.ecoserve.attained:.1f} % "
        f"(EcoServe's); the lowest window has {100 * least:.1f} %. The paper: dips to about 85 % near the split at the "
        "twelfth replica and recovers.",
    )
