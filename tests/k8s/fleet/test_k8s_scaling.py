"""A fleet that grows under load and shrinks after it, by its own proposals: drained first, no request fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytestmark = [pytest.mark.system, pytest.mark.slow]

STS = "apis/apps/v1/statefulsets"
SLOW = {"a0": 0.01, "a1": 0.004, "b0": 0.0, "b1": 0.0, "b2": 0.0, "b3": 0.001}
FAKE = {"cost": SLOW, "vocab_size": 400, "max_context": 2048, "num_blocks": 512}
SETTINGS = (
    "slo.ttft_s=0.5",
    "slo.tpot_s=0.2",
    "cluster.macro.window_s=2",
    "cluster.macro.propose_every_s=1",
    "kubernetes.scaling.enabled=true",
    'kubernetes.scaling.pools=[{workload="alt", role="alternating", min_replicas=1, max_replicas=2}]',
    "kubernetes.scaling.cooldown_s=2",
    "kubernetes.scaling.every_s=0.2",
)


async def kinds(router: Any) -> list[str]:
    decisions = (await router.http.get("/fleet/decisions?limit=1000")).json()["decisions"]
    return [decision["kind"] for decision in reversed(decisions)]


async def test_a_fleet_grows_by_its_own_proposals_and_gives_back_what_it_can_spare(world: Any) -> None:
    world.deploy("alt", 1, world.template("alternating", fake=FAKE))
    router = await world.start_router(*SETTINGS)
    await router.wait_joined("alt-0")
    # 1. more is asked for than one replica can begin in time
    async with world.load(router, clients=10, max_tokens=12):
        await router.wait_joined("alt-0", "alt-1")
    # 2. with little to do the second one is spared: drained first, while requests go on
    async with world.load(router, clients=1, max_tokens=12):
        await router.wait_joined("alt-0")
        async with asyncio.timeout(30):
            while "alt-1" in world.kubelet.pods:  # noqa: ASYNC110  (what the kubelet does)
                await asyncio.sleep(0.1)
    assert not world.failures
    assert world.admin.do("GET", STS, "alt/scale")["spec"]["replicas"] == 1
    told = await kinds(router)
    assert [kind for kind in told if kind in ("scaled", "drain")] == ["scaled", "drain", "scaled"]
    reasons = {item["reason"] for item in world.admin.do("GET", "api/v1/events")["items"]}
    assert reasons == {"Scaled"}


async def test_a_fleet_leaves_what_an_autoscaler_claims_alone(world: Any) -> None:
    world.deploy("alt", 1, world.template("alternating", fake=FAKE))
    target = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "alt"}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 9}
    path = "apis/autoscaling/v1/horizontalpodautoscalers"
    world.admin.do("POST", path, body={"metadata": {"name": "hpa"}, "spec": spec})
    router = await world.start_router(*SETTINGS)
    await router.wait_joined("alt-0")
    async with world.load(router, clients=10, max_tokens=12), asyncio.timeout(60):
        while "scaling_refused" not in await kinds(router):  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.2)
    assert not world.failures
    assert world.admin.do("GET", STS, "alt/scale")["spec"]["replicas"] == 1
    refusals = [item for item in world.admin.do("GET", "api/v1/events")["items"] if item["reason"] == "ScalingRefused"]
    assert len(refusals) == 1
    assert "HorizontalPodAutoscaler hpa scales StatefulSet alt" in refusals[0]["message"]
