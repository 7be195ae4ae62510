"""A fleet in Kubernetes under load: found, scaled, given roles, updated, with an API server that comes and goes."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest

pytestmark = pytest.mark.system

PODS = "api/v1/pods"


async def test_a_fleet_is_found_grows_shrinks_and_outlives_its_api_server(world: Any) -> None:
    world.deploy("mixed", 2, world.template("mixed"))
    router = await world.start_router()
    await router.wait_joined("mixed-0", "mixed-1")
    async with world.load(router):
        # 1. another pod, found within seconds of its readiness
        world.scale("mixed", 3)
        await router.wait_joined("mixed-0", "mixed-1", "mixed-2")
        # 2. the API server dies: what is known serves on
        world.server.kill()
        await asyncio.sleep(1.0)
        assert len(await router.fleet()) == 3
        await asyncio.to_thread(world.server.start)
        # 3. and what happens afterwards is seen
        world.scale("mixed", 1)
        await router.wait_joined("mixed-0")
        if not world.server.real:
            world.server.fault("compact")
        world.scale("mixed", 2)
        await router.wait_joined("mixed-0", "mixed-1")
    assert not world.failures
    assert len(world.answers) > 20
    await router.wait(lambda fleet: all(r["running"] == r["waiting"] == 0 for r in fleet.values()))


@pytest.mark.slow
async def test_roles_that_change_show_on_the_pods(world: Any) -> None:
    world.deploy("pool", 2, world.template("mixed"))
    router = await world.start_router()
    await router.wait_joined("pool-0", "pool-1")
    async with world.load(router):
        wish = await router.http.post("/fleet/replicas/pool-1/role", json={"role": "alternating"})
        assert wish.status_code == 202, wish.text
        async with asyncio.timeout(20):
            while (labels := _labels(world)) != {"pool-0": "mixed", "pool-1": "alternating"}:
                assert set(labels.values()) <= {None, "mixed", "alternating"}
                await asyncio.sleep(0.1)
    assert not world.failures


def _labels(world: Any) -> dict[str, str | None]:
    items = world.admin.do("GET", PODS)["items"]
    return {item["metadata"]["name"]: item["metadata"]["labels"].get("phaseserve.dev/role") for item in items}


SECRET = {"secret": "the secret of this fleet", "host": "$(POD_IP)"}


@pytest.mark.slow
async def test_a_rolling_update_pairs_no_version_with_the_other_and_drops_nothing(world: Any) -> None:
    """The new version has KV of another type, so another fingerprint; its replicas are named after it here."""
    for role in ("prefill", "decode"):
        world.deploy(role, 2, world.template(role, "$(POD_NAME).v1", transfer=SECRET))
    router = await world.start_router("cluster.layout=disaggregated", "cluster.on_unavailable=colocate")
    await router.wait(lambda fleet: len(fleet) == 4)
    paired: set[tuple[str, str]] = set()
    async with world.load(router):
        await asyncio.sleep(1.0)
        fake = {"dtype": "bfloat16", "vocab_size": 400, "max_context": 2048, "num_blocks": 512}
        for role in ("prefill", "decode"):
            template = world.template(role, "$(POD_NAME).v2", transfer=SECRET, fake=fake)
            world.admin.do("PATCH", "apis/apps/v1/statefulsets", role, {"spec": {"template": template}})
        async with asyncio.timeout(120):
            while (
                not (fleet := await router.fleet()) or not all(name.endswith(".v2") for name in fleet) or len(fleet) < 4
            ):
                await _note_pairs(router, paired)
                await asyncio.sleep(0.2)
        await asyncio.sleep(1.0)
        await _note_pairs(router, paired)
    assert not world.failures
    assert {(prefill[-3:], decode[-3:]) for prefill, decode in paired} == {(".v1", ".v1"), (".v2", ".v2")}


async def _note_pairs(router: Any, paired: set[tuple[str, str]]) -> None:
    for decision in (await router.http.get("/decisions?limit=500")).json()["decisions"]:
        plan = decision["plan"]
        if plan is not None and plan.get("prefill_replica_id"):
            paired.add((plan["prefill_replica_id"], plan["replica_id"]))


ELECTION = (
    "kubernetes.election.enabled=true",
    "kubernetes.election.duration_s=3",
    "kubernetes.election.deadline_s=2",
    "kubernetes.election.retry_s=0.4",
)


@pytest.mark.slow
async def test_of_two_routers_one_leads_and_the_other_takes_over(world: Any) -> None:
    world.deploy("mixed", 1, world.template("mixed"))
    first = await world.start_router(*ELECTION)
    await first.wait_joined("mixed-0")
    await _until_leads(first, 1.0)
    second = await world.start_router(*ELECTION)
    await second.wait_joined("mixed-0")
    # 1. both serve; roles are the leader's to change
    assert await second.metric("phaseserve_discovery_leads") == 0.0
    refused = await second.http.post("/fleet/replicas/mixed-0/role", json={"role": "alternating"})
    assert refused.status_code == 409
    assert "leading router" in refused.json()["error"]["message"]
    async with world.load(second):
        # 2. the leader leaves
        first.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(first.process.wait(), 30) == 0
        await _until_leads(second, 1.0, within_s=2.5)
        # 3. a new one follows; the leader is killed: its lease runs out
        third = await world.start_router(*ELECTION)
        await third.wait_joined("mixed-0")
    second.process.kill()
    await _until_leads(third, 1.0, within_s=15.0)
    assert not world.failures


async def _until_leads(router: Any, wanted: float, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while await router.metric("phaseserve_discovery_leads") != wanted:  # noqa: ASYNC110  (another process)
            await asyncio.sleep(0.05)
