"""The systems that are compared, each as a whole policy of both cores on the same engine, cost and arrivals."""

from __future__ import annotations

import msgspec

from contracts.phase import Role
from experiments.ecoserve.capacity import CHUNK, MAX_RUNNING
from experiments.ecoserve.setups import CLUSTERS, Data, Setup
from scheduling.config import ClusterCoreConfig, LayoutPolicy, ReplicaCoreConfig
from scheduling.planner_config import PlannerConfig
from scheduling.policies import policy
from simulator.arrivals import Gamma
from simulator.cost import CostModel
from simulator.scenario import Group, Scenario
from simulator.workload import RequestClass, Workload

NOISE = 0.03
SYSTEMS = {
    "prefill priority (vLLM 0.7)": "prefill_priority",
    "chunks (Sarathi), best size": "sarathi",
    "static P/D, best ratio": "pd",
    "EcoServe, paper": "ecoserve_paper",
    "EcoServe, artifact": "ecoserve_artifact",
    "ours, phased (`min`)": "min",
    "ours, colocated (`deadline`)": "deadline",
    "ours, auto": "auto",
}
VLLM, SARATHI, PD, PAPER, ARTIFACT, OURS, MIXED, AUTO = SYSTEMS


def scenario(setup: Setup, rule: str, *, cost: CostModel | None = None, data: Data | None = None) -> Scenario:
    """The fleet under `rule`: a name of `scheduling.admission_rules`, `auto`, or `pd:P` for P prefill replicas."""
    made, load = setup.deployment, data or setup.load
    replica = ReplicaCoreConfig(max_running=MAX_RUNNING, max_chunk=CHUNK, prefix_cache=False)
    router = ClusterCoreConfig(prefill_chunk=CHUNK)
    if rule == "auto":
        counts, router = {Role.MIXED: setup.replicas}, _router(router, "auto", planner=True)
    elif rule.startswith("pd:"):
        givers = int(rule.removeprefix("pd:"))
        counts = {Role.PREFILL: givers, Role.DECODE: setup.replicas - givers}
        router = _router(router, "disaggregated")
    else:
        found = policy(rule)
        counts = {found.role: setup.replicas}
        replica, router = found.replica_config(replica), found.cluster_config(router)
    link = CLUSTERS[setup.cluster].link_bytes_per_s[setup.model]
    return Scenario(
        fleet=tuple(
            Group(
                role=role,
                count=count,
                cost=cost or made.cost,
                noise=NOISE,
                kv=made.kv,
                num_blocks=made.num_blocks,
                max_context=made.max_context,
                link_bytes_per_s=link,
            )
            for role, count in counts.items()
        ),
        workload=Workload(
            arrivals=Gamma(rate=1.0), prompt=load.prompt, output=load.output, classes=(RequestClass(slo=load.slo),)
        ),
        scheduling=replica,
        cluster=router,
    )


def rules_of(setup: Setup, system: str) -> tuple[str, ...]:
    """What a system may be run as: the static one with every ratio, chunks of three sizes (the paper names none)."""
    rule = SYSTEMS[system]
    if rule == "sarathi":
        return tuple(f"sarathi({tokens})" for tokens in (512, 256, 128))
    return tuple(f"pd:{givers}" for givers in range(1, setup.replicas)) if rule == "pd" else (rule,)


def _router(base: ClusterCoreConfig, layout: LayoutPolicy, *, planner: bool = False) -> ClusterCoreConfig:
    return msgspec.structs.replace(base, layout=layout, planner=PlannerConfig(enabled=planner))
