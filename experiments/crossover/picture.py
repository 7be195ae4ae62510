"""The crossover map: which layout carries most, over link rate and KV bytes per token, by the closed forms.

The steps are those of one model; only the bytes of KV that cross the link are varied.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from experiments.crossover.formula import best_pools
from experiments.crossover.loads import LOADS
from experiments.crossover.sites import place, site_of
from scheduling.fleet_capacity import role_rates
from scheduling.step_cost import predict_prefill_s
from simulator.drawing import Cell, draw_crossover
from simulator.links import BYTES_PER_GBIT

PICTURE = "crossover.png"
MODEL, HARDWARE, LOAD = "codellama2-34b", "l20", "ShareGPT tight"
LINKS_GBIT = (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 400.0)
KV_KIB = {
    12.0: "",
    24.0: "",
    68.6: "DeepSeek-V3",
    128.0: "Llama-3-8B",
    192.0: "CodeLlama2-34B",
    320.0: "Llama-3-70B",
    780.0: "",
    1560.0: "Llama-30B",
}
"""KiB of KV per token, and the model that has as much."""
MEMORY_TOKENS = 200_000
"""KV room is held equal in all rows: only what crosses the link differs."""


def draw_map(path: Path, replicas: int) -> None:
    """Write the PNG: one model's step times, with the KV of others."""
    deployment = place(MODEL, HARDWARE).deployment
    assert deployment is not None
    load = next(load for load in LOADS if load.name == LOAD)
    demand = load.within(deployment.max_context).demand
    cells = []
    needs = []
    for kib, other in KV_KIB.items():
        kv, row = kib * 1024.0, f"KV as large as {other}'s" if other else ""
        for link in (gbit * BYTES_PER_GBIT for gbit in LINKS_GBIT):
            site = msgspec.structs.replace(site_of(deployment, link), kv_bytes_per_token=kv, kv_tokens=MEMORY_TOKENS)
            rates = role_rates(demand, site)
            pools, mix = best_pools(replicas, rates)
            carries = {
                "colocated": replicas * rates.mixed,
                "phased": replicas * rates.alternating,
                "disaggregated": pools,
            }
            best = max(carries, key=lambda name: carries[name])
            word = f"{mix.prefill}:{mix.decode}" if best == "disaggregated" else ""
            cells.append(Cell(link_bytes_per_s=link, kv_bytes_per_token=kv, best=best, word=word, row=row))
        prompt = round(demand.prompt_tokens)
        prefill_s = predict_prefill_s(site.cost, past=0, tokens=prompt, chunk=site.prefill_chunk)
        needs.append((kv, prompt / prefill_s * kv))
    path.write_bytes(
        draw_crossover(
            cells,
            title=f"Layout that carries most: step times of CodeLlama2-34B on {deployment.tp} L20,\n"
            f"KV size varied; {LOAD}; {replicas} replicas (in cells: prefill to decode replicas)",
            predicted=needs,
            predicted_name="need: prefill tokens/s x KV bytes/token",
        )
    )
