"""The crossover by the planner's own closed forms (`scheduling.fleet_capacity`), and by the one-line rule.

A fleet of pools with its best whole-number ratio carries `min(P * p(b), D * d(b))` over links of `b` bytes/s, which
grows with `b`; a fleet that serves requests whole carries the same whatever the link. The crossover is the least `b`
at which the pools carry as much. The one-line rule (EcoServe, OSDI'26, table 3): a prefill replica
needs `prefill tokens/s * KV bytes/token` of its link.
"""

from __future__ import annotations

import math

import msgspec

from experiments.crossover.loads import Load
from experiments.crossover.sites import Place, site_of
from scheduling.fleet_capacity import RoleRates, role_rates
from scheduling.fleet_mixes import Mix, carried
from scheduling.fleet_workload import Demand
from scheduling.step_cost import predict_prefill_s
from simulator.deployment import Deployment

SLOWEST, FASTEST = 1e5, 1e13
HALVINGS = 40


class Forecast(msgspec.Struct, frozen=True, kw_only=True):
    """One model, hardware and load: rates per second of the whole fleet, links in bytes/s.

    `need` is the one-line rule; `over_mixed` and `over_alternating` where pools take over from each: 0 at any link,
    None never. `pools` is what they carry on a link without limit, at `ratio` P:D.
    """

    model: str
    attention: str
    hardware: str
    tp: int
    load: str
    kv_bytes_per_token: int
    prefill_tokens_per_s: float
    need: float
    mixed: float
    alternating: float
    pools: float
    ratio: str
    over_mixed: float | None
    over_alternating: float | None


def forecast(there: Place, load: Load, replicas: int) -> Forecast:
    """What the closed forms say of that place under that load. Raises `AssertionError` where nothing fits."""
    deployment = there.deployment
    assert deployment is not None
    demand = load.within(deployment.max_context).demand
    site = site_of(deployment, FASTEST)
    prompt = max(1, round(demand.prompt_tokens))
    prefill_s = predict_prefill_s(site.cost, past=0, tokens=prompt, chunk=site.prefill_chunk)
    whole = role_rates(demand, site)
    pools, mix = best_pools(replicas, whole)
    return Forecast(
        model=there.model,
        attention=there.attention,
        hardware=there.hardware,
        tp=there.tp,
        load=load.name,
        kv_bytes_per_token=deployment.kv_bytes_per_token,
        prefill_tokens_per_s=prompt / prefill_s,
        need=prompt / prefill_s * deployment.kv_bytes_per_token,
        mixed=replicas * whole.mixed,
        alternating=replicas * whole.alternating,
        pools=pools,
        ratio=f"{mix.prefill}:{mix.decode}",
        over_mixed=crossover(deployment, demand, replicas, replicas * whole.mixed),
        over_alternating=crossover(deployment, demand, replicas, replicas * whole.alternating),
    )


def rates_at(deployment: Deployment, demand: Demand, link_bytes_per_s: float) -> RoleRates:
    """What one replica carries in each role over such links."""
    return role_rates(demand, site_of(deployment, link_bytes_per_s))


def best_pools(replicas: int, rates: RoleRates) -> tuple[float, Mix]:
    """The most that pools of so many replicas carry, and their mix."""
    mixes = [Mix(prefill=prefill, decode=replicas - prefill) for prefill in range(1, replicas)]
    best = max(mixes, key=lambda mix: carried(mix, rates))
    return carried(best, rates), best


def crossover(deployment: Deployment, demand: Demand, replicas: int, whole: float) -> float | None:
    """The least link rate at which pools carry `whole`; 0 when they do at any, None when they never do."""

    def carry(link: float) -> bool:
        return best_pools(replicas, rates_at(deployment, demand, link))[0] >= whole

    if whole <= 0.0 or carry(SLOWEST):
        return 0.0
    if not carry(FASTEST):
        return None
    low, high = SLOWEST, FASTEST
    for _ in range(HALVINGS):
        middle = math.sqrt(low * high)
        low, high = (low, middle) if carry(middle) else (middle, high)
    return high
