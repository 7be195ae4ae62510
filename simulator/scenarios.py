"""Scenarios that an experiment begins with, in one line each; `msgspec.structs.replace` changes what else it wants.

    small(alternating=2, rate=4.0, **deployed("qwen2-72b", "l20", tp=8))

Sources of the costs: EcoServe (OSDI'26), tables 2 and 3: CodeLlama2-34B on L20 cards, KV bytes per token and prefill
tokens per second; the decode terms are assumptions. Lengths: its table 4, means of prompts and outputs in tokens; the
medians are from memory of its first version. LongBench's prompts have the mean 2686.89 and the median 2736.5 there,
which no lognormal has: the two stand for each other here, 2 % apart.
"""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from scheduling.policies import policy
from simulator.arrivals import Arrivals, Gamma
from simulator.cost import CostModel, Fitted
from simulator.deployment import Deployment
from simulator.lengths import Lengths, LogNormal
from simulator.scenario import Group, KVShape, Scenario
from simulator.workload import RequestClass, Workload

L20_34B = Fitted(a0=0.020, a1=1.0 / 3419.0, b2=2.0e-7, b3=0.0001)
"""CodeLlama2-34B, TP4 on four L20: 3419 prompt tokens a second."""
KV_34B = KVShape(num_layers=48, num_kv_heads=8, head_dim=128)
"""196,608 bytes a token."""

SHAREGPT_PROMPT = LogNormal(mean=343.76, median=148.0, most=4096)
SHAREGPT_OUTPUT = LogNormal(mean=237.20, median=152.0, most=2048)
ALPACA_PROMPT = LogNormal(mean=20.63, median=17.0, most=512)
ALPACA_OUTPUT = LogNormal(mean=163.80, median=119.0, most=2048)
LONGBENCH_PROMPT = LogNormal(mean=2736.5, median=2686.89, most=8192)
LONGBENCH_OUTPUT = LogNormal(mean=101.78, median=19.0, most=1024)


def small(
    *,
    alternating: int = 0,
    mixed: int = 0,
    prefill: int = 0,
    decode: int = 0,
    rate: float = 4.0,
    cv: float = 1.0,
    duration_s: float = 60.0,
    seed: int = 0,
    arrivals: Arrivals | None = None,
    prompt: Lengths = SHAREGPT_PROMPT,
    output: Lengths = SHAREGPT_OUTPUT,
    slo: Slo | None = None,
    cost: CostModel = L20_34B,
    noise: float = 0.03,
    kv: KVShape = KV_34B,
    num_blocks: int = 4096,
    max_context: int = 32_768,
    link_bytes_per_s: float = 1.25e9,
    max_tokens: int = 0,
    num_requests: int = 0,
    scheduling: ReplicaCoreConfig | None = None,
    cluster: ClusterCoreConfig | None = None,
) -> Scenario:
    """A fleet of one model, so many replicas of each role. Defaults: CodeLlama2-34B on L20 cards with 10 Gbit/s links,
    ShareGPT lengths, EcoServe's targets for them (5 s, 100 ms)."""
    counts = {Role.ALTERNATING: alternating, Role.MIXED: mixed, Role.PREFILL: prefill, Role.DECODE: decode}
    fleet = tuple(
        Group(
            role=role,
            count=count,
            cost=cost,
            noise=noise,
            kv=kv,
            num_blocks=num_blocks,
            max_context=max_context,
            link_bytes_per_s=link_bytes_per_s,
        )
        for role, count in counts.items()
        if count
    )
    workload = Workload(
        arrivals=arrivals or Gamma(rate=rate, cv=cv),
        prompt=prompt,
        output=output,
        classes=(RequestClass(slo=slo or Slo(ttft_s=5.0, tpot_s=0.1)),),
        max_tokens=max_tokens,
        num_requests=num_requests,
    )
    scheduling = scheduling or ReplicaCoreConfig(max_running=256, max_chunk=2048, prefix_cache=False)
    return Scenario(
        fleet=fleet,
        workload=workload,
        duration_s=duration_s,
        seed=seed,
        scheduling=scheduling,
        cluster=cluster or ClusterCoreConfig(prefill_chunk=scheduling.max_chunk),
        warmup_s=0.0,
    )


def deployed(
    model: str, hardware: str, *, tp: int = 1, pp: int = 1, dtype: str = "", kv_dtype: str = "bfloat16"
) -> dict[str, Any]:
    """What `small` and `Group` want to know of a replica, by names or paths: its `cost`, `kv`, `num_blocks`,
    `max_context`.

    Raises `ConfigError`: an unknown name, a layout that is not possible, a model that does not fit.
    """
    there = Deployment(model=model, hardware=hardware, tp=tp, pp=pp, dtype=dtype, kv_dtype=kv_dtype)
    return {"cost": there.cost, "kv": there.kv, "num_blocks": there.num_blocks, "max_context": there.max_context}


def under(scenario: Scenario, rule: str) -> Scenario:
    """The scenario under a whole policy (`scheduling.policies`), all replicas in its role.

    Raises `ConfigError` for a rule that is not known.
    """
    wanted = policy(rule)
    return msgspec.structs.replace(
        scenario,
        fleet=tuple(msgspec.structs.replace(group, role=wanted.role, name=group.prefix) for group in scenario.fleet),
        scheduling=wanted.replica_config(scenario.scheduling),
        cluster=wanted.cluster_config(scenario.cluster),
    )
