"""Builders of planner tests: what a 34B model on L20 cards is like, and cores whose planner is on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from contracts.cluster_io import ReplicaJoined
from contracts.request import Slo
from contracts.views import StepCost
from scheduling.cluster_core import ClusterCore
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_capacity import Site
from scheduling.fleet_workload import Demand
from scheduling.planner_config import PlannerConfig

DATA = {"data_endpoints": ("tcp://127.0.0.1:1",)}


@pytest.fixture(scope="session")
def demand() -> Callable[..., Demand]:
    """500 prompt and 200 output tokens within 3 s and 60 ms."""

    def build(**changes: Any) -> Demand:
        prompt = float(changes.get("prompt_tokens", 500.0))
        values: dict[str, Any] = {
            "rate": 1.0,
            "prompt_tokens": prompt,
            "long_prompt_tokens": 2 * prompt,
            "sent_tokens": prompt,
            "output_tokens": 200.0,
            "slo": Slo(ttft_s=3.0, tpot_s=0.06),
        }
        return Demand(**(values | changes))

    return build


@pytest.fixture(scope="session")
def site() -> Callable[..., Site]:
    """Links of 10 Gbit/s, 64 Ki tokens of KV."""

    def build(**changes: Any) -> Site:
        values: dict[str, Any] = {
            "cost": StepCost(a0=0.02, a1=1.0 / 3419.0, b0=0.0, b1=0.0, b2=2e-7, b3=1e-4),
            "prefill_chunk": 2048,
            "kv_tokens": 65536.0,
            "max_running": 256.0,
            "kv_bytes_per_token": 196_608.0,
            "num_layers": 48,
            "link_bytes_per_s": 1.25e9,
        }
        return Site(**(values | changes))

    return build


@pytest.fixture
def planned(cluster: Any) -> Callable[..., ClusterCore]:
    """A core whose planner is on, with replicas by name and role, all of which have a data plane."""

    def build(roles: dict[str, Any], settings: dict[str, Any] | None = None, **view: Any) -> ClusterCore:
        core = ClusterCore(ClusterCoreConfig(planner=PlannerConfig(enabled=True), **(settings or {})))
        for replica_id, role in roles.items():
            shown = cluster.view(replica_id, role=role, **view)
            core.handle(ReplicaJoined(cluster.identity(replica_id, **DATA), shown), 0.0)
        return core

    return build
