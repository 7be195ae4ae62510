"""The loads, the replica and the policies, as scenarios."""

from __future__ import annotations

from pathlib import Path

import msgspec

from contracts.phase import Role
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, MicroBatches, ReplicaCoreConfig
from simulator.arrivals import Gamma
from simulator.deployment import Deployment
from simulator.goodput import at_rate
from simulator.grid import Case, Value
from simulator.report import Report
from simulator.scenario import Group, Scenario
from simulator.scenarios import SHAREGPT_OUTPUT, SHAREGPT_PROMPT
from simulator.traces import Trace
from simulator.workload import RequestClass, Workload

MODEL = "qwen2.5-32b"
HARDWARE = "a100-40"
DEVICES = 4
FIXED = (128, 256, 512, 1024, 2048)
POLICIES = (*(f"sarathi({size})" for size in FIXED), "deadline", "dcp_greedy", "dcp_predictive")
AZURE, SHAREGPT = "AzureConv", "ShareGPT"
TRACE = "azure_llm_2023_conv.csv"
SLO = Slo(ttft_s=2.0, tpot_s=0.2)


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """`data` at `rate` requests a second, for `requests` of them; both targets times `scale`."""

    data: str
    rate: float
    scale: float = 1.0
    requests: int = 400


def workload(load: Load, traces: Path, seed: int) -> Workload:
    """Azure: a part of the recording that the seed chooses, at its own rate; ShareGPT: its lengths, Poisson."""
    slo = Slo(ttft_s=SLO.ttft_s * load.scale, tpot_s=SLO.tpot_s * load.scale)
    classes = (RequestClass(slo=slo),)
    if load.data == AZURE:
        trace = Trace(path=str(traces / TRACE), skip=2000 * (seed + 1), most=load.requests)
        return Workload(trace=trace, classes=classes, num_requests=load.requests)
    return Workload(
        arrivals=Gamma(rate=load.rate, cv=1.0),
        prompt=SHAREGPT_PROMPT,
        output=SHAREGPT_OUTPUT,
        classes=classes,
        num_requests=load.requests,
    )


def case(
    load: Load, policy: str, pp: int, traces: Path, *, seed: int = 0, micro_batches: MicroBatches = "even"
) -> Case:
    """One run: one replica of four cards, `pp` stages of `4 / pp` each."""
    place = Deployment(model=MODEL, hardware=HARDWARE, tp=DEVICES // pp, pp=pp)
    scenario = Scenario(
        fleet=(
            Group(
                role=Role.MIXED,
                cost=place.cost,
                noise=0.02,
                kv=place.kv,
                num_blocks=place.num_blocks,
                max_context=place.max_context,
            ),
        ),
        workload=workload(load, traces, seed),
        seed=seed,
        scheduling=ReplicaCoreConfig(
            admission=policy,
            max_running=1024,
            max_waiting=4096,
            max_waiting_tokens=8_000_000,
            max_chunk=2048,
            min_chunk=32,
            prefix_cache=False,
            micro_batches=micro_batches,
        ),
        cluster=ClusterCoreConfig(layout="colocated", admission=policy, max_pending=4096, max_pending_s=600.0),
    )
    labels: dict[str, str | int | float] = {
        "data": load.data,
        "rate": load.rate,
        "scale": load.scale,
        "policy": policy,
        "pp": pp,
        "micro_batches": micro_batches,
        "seed": seed,
    }
    return Case(labels, at_rate(scenario, load.rate))


def stages(report: Report) -> dict[str, Value]:
    """What a report says of the one replica's stages."""
    replica = report.replicas[0]
    bubbles, alive_s = replica.bubbles_s, replica.stages * report.duration_s
    return {
        "iteration_p50_s": replica.iteration_s.p50,
        "iteration_p90_s": replica.iteration_s.p90,
        "iteration_p99_s": replica.iteration_s.p99,
        "busy": replica.busy,
        "p_p": bubbles.p_p / alive_s,
        "p_d": bubbles.p_d / alive_s,
        "d_d": bubbles.d_d / alive_s,
        "starved": bubbles.starved / alive_s,
        "preemptions": replica.preemptions,
        "mape": replica.mape,
    }
