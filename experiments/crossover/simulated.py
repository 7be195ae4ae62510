"""The same crossover in the simulator: the goodput of each layout, scanned over rates around what is predicted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from experiments.crossover.formula import best_pools, rates_at
from experiments.crossover.loads import LOADS, Load
from experiments.crossover.sites import CHUNK, MAX_RUNNING, place
from scheduling.config import ClusterCoreConfig, LayoutPolicy, ReplicaCoreConfig
from scheduling.fleet_mixes import Mix
from simulator.deployment import Deployment
from simulator.goodput import interpolated_goodput
from simulator.grid import Row, at_rates, run_grid
from simulator.links import BYTES_PER_GBIT
from simulator.scenario import Scenario
from simulator.scenarios import small

FACTORS = (0.25, 0.45, 0.65, 0.85, 1.05, 1.3, 1.7, 2.2)
"""Of the predicted rate, in ascending order; where attainment is below `HOPELESS` the scan of a layout ends."""
HOPELESS = 0.7
SHARE = 0.9


class Pick(msgspec.Struct, frozen=True, kw_only=True):
    """What is simulated: a model on a hardware under a load, over links of these Gbit/s."""

    model: str
    hardware: str
    load: str
    links: tuple[float, ...]
    seconds: float = 60.0


PICKS = (
    Pick(model="codellama2-34b", hardware="l20", load="ShareGPT tight", links=(0.5, 1.5, 5.0, 15.0)),
    Pick(model="llama-30b", hardware="l20", load="ShareGPT tight", links=(4.0, 12.0, 40.0, 120.0)),
    Pick(model="deepseek-v3", hardware="h200", load="LongBench", links=(1.5, 5.0, 15.0, 100.0), seconds=60.0),
    Pick(model="qwen2-72b", hardware="l20", load="ShareGPT", links=(0.5, 1.7, 5.0, 15.0)),
    Pick(model="llama-3-70b", hardware="a800", load="ShareGPT tight", links=(0.7, 2.3, 7.0, 25.0)),
    Pick(model="codellama2-34b", hardware="l20", load="LongBench", links=(1.5, 5.0, 15.0, 45.0), seconds=120.0),
    Pick(model="llama-30b", hardware="l20", load="LongBench", links=(15.0, 45.0, 150.0, 400.0), seconds=120.0),
)


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """Goodput of one layout, requests/s of the fleet: predicted, and simulated by EcoServe's and by the usual clock.
    `at_least`: the highest rate looked at passed."""

    pick: Pick
    layout: str
    link_gbit: float | None
    mix: str
    predicted: float
    goodput: float
    usual: float
    at_least: bool = False


class _Plan(msgspec.Struct, frozen=True):
    pick: Pick
    layout: LayoutPolicy
    link_gbit: float | None
    mix: Mix
    predicted: float


def find(pick: Pick, replicas: int, seeds: int, store: Path | None, workers: int | None) -> list[Found]:
    """Scan all layouts of a pick. A layout that does not use links is run once."""
    return [_found(plan, _scan(plan, seeds, store, workers)) for plan in _plans(pick, replicas)]


def crossing(found: Sequence[Found], layout: str, clock: str = "goodput") -> tuple[float, float | None] | None:
    """Between which two links of the scan (Gbit/s) the pools take over from `layout`: (slower, faster). Slower 0: they
    are ahead on the slowest one already. None: they never are."""
    whole = max(getattr(one, clock) for one in found if one.layout == layout)
    pools = sorted((one.link_gbit or 0.0, getattr(one, clock)) for one in found if one.layout == "disaggregated")
    below = 0.0
    for link, goodput in pools:
        if goodput >= whole:
            return below, link
        below = link
    return None


def _plans(pick: Pick, replicas: int) -> list[_Plan]:
    deployment, load = _there(pick)
    demand = load.within(deployment.max_context).demand
    rates = rates_at(deployment, demand, 1e13)
    plans = [
        _Plan(pick, "colocated", None, Mix(mixed=replicas), replicas * rates.mixed),
        _Plan(pick, "phased", None, Mix(alternating=replicas), replicas * rates.alternating),
    ]
    for link in pick.links:
        there = rates_at(deployment, demand, link * BYTES_PER_GBIT)
        carries, mix = best_pools(replicas, there)
        plans.append(_Plan(pick, "disaggregated", link, mix, carries))
    return [plan for plan in plans if plan.predicted > 0.0]


def _there(pick: Pick) -> tuple[Deployment, Load]:
    deployment = place(pick.model, pick.hardware).deployment
    assert deployment is not None
    return deployment, next(load for load in LOADS if load.name == pick.load)


def _scan(plan: _Plan, seeds: int, store: Path | None, workers: int | None) -> list[Row]:
    rows: list[Row] = []
    for factor in FACTORS:
        rate = round(factor * plan.predicted, 4)
        rows += _run(plan, rate, seeds, store, workers)
        if _attained(rows, rate, "ecoserve") < HOPELESS:
            break
    return rows


def _run(plan: _Plan, rate: float, seeds: int, store: Path | None, workers: int | None) -> list[Row]:
    labels: dict[str, str | int | float] = {
        "model": plan.pick.model,
        "hardware": plan.pick.hardware,
        "load": plan.pick.load,
        "layout": plan.layout,
        "mix": plan.mix.in_words(),
        "link_gbit": plan.link_gbit or 0.0,
    }
    cases = [
        case for seed in range(seeds) for case in at_rates({**labels, "seed": seed}, _scenario(plan, seed), [rate])
    ]
    return run_grid(cases, store, workers, progress=False)


def _scenario(plan: _Plan, seed: int) -> Scenario:
    deployment, load = _there(plan.pick)
    cut = load.within(deployment.max_context)
    return small(
        alternating=plan.mix.alternating,
        mixed=plan.mix.mixed,
        prefill=plan.mix.prefill,
        decode=plan.mix.decode,
        duration_s=plan.pick.seconds,
        seed=seed,
        prompt=cut.prompt,
        output=cut.output,
        slo=cut.slo,
        cost=deployment.cost,
        kv=deployment.kv,
        num_blocks=deployment.num_blocks,
        max_context=deployment.max_context,
        link_bytes_per_s=(plan.link_gbit or 10.0) * BYTES_PER_GBIT,
        scheduling=ReplicaCoreConfig(max_running=MAX_RUNNING, max_chunk=CHUNK, prefix_cache=False),
        cluster=ClusterCoreConfig(layout=plan.layout, prefill_chunk=CHUNK),
    )


def _found(plan: _Plan, rows: Sequence[Row]) -> Found:
    rates = _rates(rows)
    goodput = _goodput(rows, "ecoserve")
    return Found(
        pick=plan.pick,
        layout=plan.layout,
        link_gbit=plan.link_gbit,
        mix=plan.mix.in_words(),
        predicted=plan.predicted,
        goodput=goodput,
        usual=_goodput(rows, "usual"),
        at_least=goodput >= rates[-1],
    )


def _goodput(rows: Sequence[Row], clock: str) -> float:
    """The highest rate that passes; between it and the next one on a straight line of attainment. 0: none does."""
    return interpolated_goodput([(rate, _attained(rows, rate, clock)) for rate in _rates(rows)], SHARE)[0]


def _rates(rows: Sequence[Row]) -> list[float]:
    return sorted({row.number("rate") for row in rows})


def _attained(rows: Sequence[Row], rate: float, clock: str) -> float:
    """Over all seeds. A run that failed attained nothing."""
    at = [0.0 if row.error else row.number(f"{clock}.attained") for row in rows if row.number("rate") == rate]
    return sum(at) / len(at)
