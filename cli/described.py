"""A scenario in two lines: which model on what serves, over which links; what is asked of it, with which targets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cli.asked import DATA
from cli.usual_request import usual_request
from contracts.request import Slo
from simulator.links import BYTES_PER_GBIT
from simulator.roofline import Roofline
from simulator.scenario import Group, Scenario
from simulator.scenarios import L20_34B
from simulator.workload import Workload


def described(scenario: Scenario, cost_file: str | None = None) -> Iterator[str]:
    """The lines. `cost_file`: where the costs of a step were read from, if they were."""
    replicas = ", ".join(f"{group.count} {group.role.value}" for group in scenario.fleet)
    engines = dict.fromkeys(_engine(group, cost_file) for group in scenario.fleet)
    links = dict.fromkeys(f"{group.link_bytes_per_s / BYTES_PER_GBIT:g}" for group in scenario.fleet)
    yield f"{' and '.join(engines)}: {replicas}; links of {' and '.join(links)} Gbit/s"
    yield f"{_lengths(scenario.workload)}; targets: {targets_of(scenario)}; seed {scenario.seed}"


def targets_of(scenario: Scenario) -> str:
    """In words, with units; those of each class by its name where they differ."""
    slos = {kind.slo for kind in scenario.workload.classes}
    if len(slos) == 1:
        return _targets(slos.pop())
    return "; ".join(f"{kind.name} {_targets(kind.slo)}" for kind in scenario.workload.classes)


def _targets(slo: Slo) -> str:
    return f"TTFT {slo.ttft_s:g} s, TPOT {1e3 * slo.tpot_s:g} ms"


def _engine(group: Group, cost_file: str | None) -> str:
    cost = group.cost
    if isinstance(cost, Roofline):
        stages = f", PP {cost.pp}" if cost.pp > 1 else ""
        return f"{cost.of.name} on {cost.on.name}, TP {cost.tp}{stages}"
    if cost == L20_34B:
        return "CodeLlama2-34B on L20, TP 4"
    return f"steps as measured in {Path(cost_file).name}" if cost_file else "steps as the settings say"


def _lengths(workload: Workload) -> str:
    usual = usual_request(workload)
    mean = f"prompts of {usual.prompt:.0f} tokens and answers of {usual.answer:.0f} in the mean"
    if workload.trace is not None:
        return f"{Path(workload.trace.path).name}, {mean}"
    for name, lengths in DATA.items():
        if lengths == (workload.prompt, workload.output):
            return f"{name}, {mean}"
    return mean
