"""`python -m experiments.planner`: what the planner's closed forms say a mix carries, beside its simulated goodput.

For each workload and link rate every mix of `--replicas` is scanned over rates around what is predicted. The goodput is
the highest rate at which nine of ten requests meet both targets on EcoServe's clock: the switch wait counts into TTFT,
as it does for the planner. The last columns say which mix the planner would choose and what it loses against the best.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from contracts.request import Slo
from contracts.views import StepCost
from experiments.load.machine import describe_machine
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_capacity import RoleRates, Site, role_rates
from scheduling.fleet_mixes import Bounds, Mix, best_mix, carried
from scheduling.fleet_workload import Demand
from simulator.goodput import scan
from simulator.lengths import LogNormal
from simulator.scenario import Scenario
from simulator.scenarios import KV_34B, L20_34B, small

WORKLOADS = {"prompt-heavy": (2000, 50), "balanced": (500, 200), "output-heavy": (150, 500)}
SLO = Slo(ttft_s=3.0, tpot_s=0.06)
LINKS = (1.25e7, 1.25e8, 1.25e9)
FACTORS = (0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5)
NUM_BLOCKS, CHUNK = 4096, 2048
SHARE = 0.9


class Cell(msgspec.Struct, frozen=True):
    """One mix under one workload and link: requests/s predicted and simulated."""

    workload: str
    link_bytes_per_s: float
    mix: Mix
    predicted: float
    goodput: float


def main() -> None:
    """Scan all cells on all cores and print the table."""
    parser = argparse.ArgumentParser(prog="python -m experiments.planner", description=__doc__)
    parser.add_argument("--replicas", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=90.0, help="simulated time of each rate (default 90)")
    words = parser.parse_args()
    print(describe_machine())
    jobs = [(name, link, mix, words.seconds) for name in WORKLOADS for link in LINKS for mix in _mixes(words.replicas)]
    with ProcessPoolExecutor() as pool:
        cells = list(pool.map(_cell, jobs))
    print("| workload | link MB/s | mix | predicted /s | simulated /s | ratio |")
    print("| --- | ---: | --- | ---: | ---: | ---: |")
    for cell in cells:
        ratio = f"{cell.predicted / cell.goodput:.2f}" if cell.goodput else "-"
        rate = f"{cell.predicted:.2f} | {cell.goodput:.2f}"
        print(f"| {cell.workload} | {cell.link_bytes_per_s / 1e6:g} | {cell.mix.in_words()} | {rate} | {ratio} |")
    print("\n| workload | link MB/s | chosen | its goodput | best | its goodput | lost |\n" + "| --- " * 7 + "|")
    for name in WORKLOADS:
        for link in LINKS:
            _print_choice([c for c in cells if c.workload == name and c.link_bytes_per_s == link], words.replicas)


def _print_choice(cells: list[Cell], replicas: int) -> None:
    rates = _rates(cells[0].workload, cells[0].link_bytes_per_s)
    chosen_mix = best_mix(Mix(mixed=replicas), rates, Bounds(total=replicas, poolable=replicas))
    chosen = next(cell for cell in cells if cell.mix == chosen_mix)
    best = max(cells, key=lambda cell: cell.goodput)
    lost = 1.0 - chosen.goodput / best.goodput if best.goodput else 0.0
    told = f"{chosen.mix.in_words()} | {chosen.goodput:.2f} | {best.mix.in_words()} | {best.goodput:.2f} | {lost:.0%}"
    print(f"| {chosen.workload} | {chosen.link_bytes_per_s / 1e6:g} | {told} |")


def _mixes(replicas: int) -> Iterator[Mix]:
    yield Mix(mixed=replicas)
    yield Mix(alternating=replicas)
    for prefill in range(1, replicas):
        yield Mix(prefill=prefill, decode=replicas - prefill)
        if prefill < replicas - 1:
            yield Mix(mixed=replicas - prefill - 1, prefill=prefill, decode=1)


def _cell(job: tuple[str, float, Mix, float]) -> Cell:
    name, link, mix, seconds = job
    predicted = carried(mix, _rates(name, link))
    around = predicted or carried(Mix(mixed=mix.prefill + mix.decode + mix.mixed), _rates(name, link)) / 4
    goodput = scan(_scenario(name, link, mix, seconds), [around * factor for factor in FACTORS], SHARE)
    return Cell(name, link, mix, predicted, goodput.goodput_ecoserve)


def _scenario(name: str, link: float, mix: Mix, seconds: float) -> Scenario:
    prompt, output = WORKLOADS[name]
    only_pools = mix.prefill and not mix.mixed
    return small(
        alternating=mix.alternating,
        mixed=mix.mixed,
        prefill=mix.prefill,
        decode=mix.decode,
        duration_s=seconds,
        prompt=_lengths(prompt),
        output=_lengths(output),
        slo=SLO,
        link_bytes_per_s=link,
        num_blocks=NUM_BLOCKS,
        cluster=ClusterCoreConfig(layout="disaggregated" if only_pools else "auto"),
    )


def _lengths(mean: int) -> LogNormal:
    return LogNormal(mean=mean, median=0.7 * mean, most=8192)


def _rates(name: str, link: float) -> RoleRates:
    prompt, output = WORKLOADS[name]
    cost = StepCost(**{field: getattr(L20_34B, field) for field in ("a0", "a1", "b0", "b1", "b2", "b3")})
    layout = KV_34B.layout
    site = Site(
        cost=cost,
        prefill_chunk=CHUNK,
        kv_tokens=NUM_BLOCKS * layout.block_size,
        max_running=256,
        kv_bytes_per_token=layout.bytes_per_token,
        num_layers=layout.num_layers,
        link_bytes_per_s=link,
    )
    demand = Demand(
        rate=1.0,
        prompt_tokens=prompt,
        long_prompt_tokens=2 * prompt,
        sent_tokens=prompt,
        output_tokens=output,
        slo=SLO,
    )
    return role_rates(demand, site)


if __name__ == "__main__":
    main()
