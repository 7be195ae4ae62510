"""Scaling and role labels on a real protocol, with a fleet that says what it is told to."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from contracts.cluster_io import ProposeReplicas, ReplicaDrainRequested
from contracts.discovery import ReplicaStanding
from contracts.errors import Conflict
from contracts.phase import Role
from k8s.api import ApiClient
from k8s.cluster_events import ClusterEvents
from k8s.config import PoolConfig, ScalingConfig
from k8s.credentials import find_cluster
from k8s.role_labels import RoleLabels
from k8s.scaler import Scaler

STS, PODS, EVENTS = "apis/apps/v1/statefulsets", "api/v1/pods", "api/v1/events"
DEPLOYMENTS = "apis/apps/v1/deployments"
HPAS = "apis/autoscaling/v1/horizontalpodautoscalers"
TARGET = {"apiVersion": "apps/v1", "kind": "StatefulSet", "name": "p"}
CLAIM = {"metadata": {"name": "hpa-p"}, "spec": {"scaleTargetRef": TARGET, "minReplicas": 1, "maxReplicas": 9}}
MORE, FEWER = ProposeReplicas(1, "it is busy"), ProposeReplicas(-1, "it is idle")
POOL = PoolConfig(workload="p", min_replicas=1, max_replicas=3)


class FleetOfWords:
    """A fleet side: what it was asked and told, and what it answers."""

    def __init__(self) -> None:
        self.replicas: dict[str, ReplicaStanding] = {}
        self.wishes: list[Any] = []
        self.notes: list[tuple[str, str]] = []
        self.needed: set[str] = set()

    def put(self, name: str, **fields: Any) -> None:
        values = {"incarnation": "1", "role": Role.ALTERNATING, "requests": 0, "sequences": 0, "draining": False}
        self.replicas[name] = ReplicaStanding(replica_id=name, endpoint=f"tcp://{name}:5", **{**values, **fields})

    def standings(self) -> dict[str, ReplicaStanding]:
        return dict(self.replicas)

    def why_not_drain(self, replica_id: str) -> Conflict | None:
        return Conflict(f"without {replica_id} nothing could be served") if replica_id in self.needed else None

    def tell(self, wish: Any) -> None:
        self.wishes.append(wish)

    def note(self, kind: str, reason: str, **numbers: float) -> None:
        self.notes.append((kind, reason))

    def found(self, endpoints: Any) -> None:
        raise AssertionError("a scaler finds nobody")

    def lead(self, leader: str | None) -> None:
        raise AssertionError("a scaler elects nobody")


class Scene:
    """A scaler at work on one namespace."""

    def __init__(self, admin: Any, fleet: FleetOfWords, scaler: Scaler, labels: RoleLabels) -> None:
        self.admin, self.fleet, self.scaler, self.labels = admin, fleet, scaler, labels
        self.leads = True
        self.tasks: list[asyncio.Task[None]] = []

    async def begin(self) -> None:
        """Who comes to lead looks at the workloads first, and their cool-down begins."""
        self.tasks = [asyncio.create_task(self.scaler.run()), asyncio.create_task(self.labels.run())]
        await self.until(lambda: self.scaler.looked)
        await asyncio.sleep(0.05)

    def workload(self, name: str = "p", size: int = 2, base: str = STS) -> None:
        container = {"name": "c", "image": "i"}
        template = {"metadata": {"labels": {"a": name}}, "spec": {"containers": [container]}}
        spec: dict[str, Any] = {"replicas": size, "selector": {"matchLabels": {"a": name}}, "template": template}
        if base == STS:
            spec["serviceName"] = name
        kind = "StatefulSet" if base == STS else "Deployment"
        body = {"apiVersion": "apps/v1", "kind": kind, "metadata": {"name": name}, "spec": spec}
        self.admin.do("POST", base, body=body)
        self.settle(name, size, base)

    def settle(self, name: str, size: int, base: str = STS) -> None:
        """As its controller does once the pods are there."""
        self.admin.do("PATCH", base, f"{name}/status", {"status": {"replicas": size}})

    def size(self, name: str = "p", base: str = STS) -> int:
        size: int = self.admin.do("GET", base, f"{name}/scale")["spec"]["replicas"]
        return size

    def events(self) -> list[tuple[str, str]]:
        items = self.admin.do("GET", EVENTS)["items"]
        return [(item["reason"], item["involvedObject"]["name"]) for item in items]

    async def until(self, check: Callable[[], bool], within_s: float = 8.0) -> None:
        async with asyncio.timeout(within_s):
            while not check():  # noqa: ASYNC110  (other tasks and another process)
                await asyncio.sleep(0.03)


@pytest.fixture
def scene(tmp_path: Path, admin_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(server: Any, *pools: PoolConfig, **settings: float) -> AsyncIterator[Scene]:
        admin, fleet = admin_of(server), FleetOfWords()
        cluster = await find_cluster(str(server.kubeconfig(tmp_path, admin.namespace)))
        values = {"cooldown_s": 0.01, "every_s": 0.05, "drain_s": 30.0, "keep_s": 30.0, **settings}
        config = ScalingConfig(enabled=True, pools=pools or (POOL,), **values)
        async with ApiClient(cluster, cluster.namespace) as api:
            found: list[Scene] = []

            def leads() -> bool:
                return found[0].leads

            scaler = Scaler(api, config, fleet, ClusterEvents(api, "router-1"), leads)
            labels = RoleLabels(api, fleet, leads)
            found.append(Scene(admin, fleet, scaler, labels))
            try:
                yield found[0]
            finally:
                for task in found[0].tasks:
                    task.cancel()
                ended = await asyncio.gather(*found[0].tasks, return_exceptions=True)
                assert all(isinstance(end, asyncio.CancelledError) for end in ended), ended

    return make


async def test_a_pool_grows_by_one_and_not_beyond_its_bound(scene: Any, server: Any) -> None:
    async with scene(server) as here:
        here.workload(size=1)
        await here.begin()
        here.scaler.propose(MORE)
        await here.until(lambda: here.size() == 2)
        # 1. while its pods are not there yet nothing more is asked for
        here.scaler.propose(MORE)
        await here.until(lambda: here.scaler.refusals == 1)
        assert "an earlier change is under way" in here.fleet.notes[-1][1]
        # 2. nor when it is at its most
        here.settle("p", 2)
        here.scaler.propose(MORE)
        await here.until(lambda: here.size() == 3)
        here.scaler.propose(MORE)
        await here.until(lambda: here.scaler.refusals == 2)
        assert "at its most, 3" in here.fleet.notes[-1][1]
        assert here.size() == 3
        await here.until(lambda: here.events() == [("Scaled", "p")] * 2)
        assert [kind for kind, _ in here.fleet.notes] == ["scaled", "scaling_refused"] * 2


async def test_who_is_to_go_is_drained_first_and_the_size_changes_when_it_is_empty(scene: Any, server: Any) -> None:
    async with scene(server) as here:
        here.workload(size=2)
        await here.begin()
        here.fleet.put("p-0")
        here.fleet.put("p-1", requests=2, sequences=3)
        here.scaler.propose(FEWER)
        await here.until(lambda: here.fleet.wishes == [ReplicaDrainRequested("p-1")])
        here.fleet.put("p-1", draining=True, sequences=1)
        await asyncio.sleep(0.3)
        assert here.size() == 2
        del here.fleet.replicas["p-1"]
        await here.until(lambda: here.size() == 1)
        assert here.fleet.wishes == [ReplicaDrainRequested("p-1")]


async def test_who_cannot_be_spared_stays(scene: Any, fake: Any) -> None:
    async with scene(fake) as here:
        here.workload(size=2)
        await here.begin()
        here.fleet.put("p-1")
        here.fleet.needed.add("p-1")
        here.scaler.propose(FEWER)
        await here.until(lambda: here.scaler.refusals == 1)
        assert here.fleet.wishes == []
        assert here.size() == 2


async def test_a_drain_that_takes_too_long_is_left_to_the_pods_own(scene: Any, fake: Any) -> None:
    async with scene(fake, drain_s=0.3) as here:
        here.workload(size=2)
        await here.begin()
        here.fleet.put("p-1", sequences=1)
        here.scaler.propose(FEWER)
        await here.until(lambda: here.size() == 1)
        assert here.fleet.wishes == [ReplicaDrainRequested("p-1")]


@pytest.mark.parametrize("claimed", [False, True])
async def test_somebody_elses_change_during_a_drain_is_not_undone(scene: Any, fake: Any, claimed: bool) -> None:
    async with scene(fake) as here:
        here.workload(size=2)
        await here.begin()
        here.fleet.put("p-1", sequences=1)
        here.scaler.propose(FEWER)
        await here.until(lambda: bool(here.fleet.wishes))
        if claimed:
            here.admin.do("POST", HPAS, body=CLAIM)
        else:
            here.admin.do("PATCH", STS, "p/scale", {"spec": {"replicas": 3}})
        del here.fleet.replicas["p-1"]
        await here.until(lambda: here.scaler.refusals == 1)
        assert here.size() == (2 if claimed else 3)


async def test_a_pool_that_an_autoscaler_claims_is_left_alone_with_a_clear_event(scene: Any, server: Any) -> None:
    """Two that scale one workload undo each other for ever."""
    async with scene(server) as here:
        here.workload(size=2)
        await here.begin()
        here.admin.do("POST", HPAS, body=CLAIM)
        for _ in range(2):
            refusals = here.scaler.refusals
            here.scaler.propose(MORE)
            await here.until(lambda before=refusals: here.scaler.refusals == before + 1)
        await here.until(lambda: here.events() == [("ScalingRefused", "p")])  # once, not at each proposal
        assert "HorizontalPodAutoscaler hpa-p scales StatefulSet p" in here.fleet.notes[0][1]
        assert len(here.fleet.notes) == 1
        assert here.size() == 2
        # the autoscaler is taken away: the fleet's word counts again
        here.admin.do("DELETE", HPAS, "hpa-p")
        here.scaler.propose(MORE)
        await here.until(lambda: here.size() == 3)


@pytest.mark.slow
async def test_nothing_happens_before_the_cooldown_whoever_changed_the_size(scene: Any, fake: Any) -> None:
    async with scene(fake, cooldown_s=1.0) as here:
        here.workload(size=1)
        await here.begin()
        here.scaler.propose(MORE)
        await here.until(lambda: here.scaler.refusals >= 1)
        assert here.size() == 1
        await asyncio.sleep(1.0)
        here.scaler.propose(MORE)
        await here.until(lambda: here.size() == 2)


async def test_a_deployment_gives_up_the_pod_that_was_drained(scene: Any, server: Any) -> None:
    names = ("d-5f6b7-abcde", "d-5f6b7-fghij")
    async with scene(server, PoolConfig(workload="d", kind="Deployment")) as here:
        here.workload("d", 2, DEPLOYMENTS)
        await here.begin()
        for name in names:
            spec = {"containers": [{"name": "c", "image": "i"}]}
            here.admin.do("POST", PODS, body={"metadata": {"name": name}, "spec": spec})
            here.fleet.put(name, sequences=1)
        here.scaler.propose(ProposeReplicas(-1, "it is idle", names[0]))
        await here.until(lambda: here.fleet.wishes == [ReplicaDrainRequested(names[0])])
        annotations = here.admin.do("GET", PODS, names[0])["metadata"]["annotations"]
        assert annotations == {"controller.kubernetes.io/pod-deletion-cost": "-1000"}
        here.fleet.put(names[0], draining=True)
        await here.until(lambda: here.size("d", DEPLOYMENTS) == 1)


@pytest.mark.slow
async def test_a_proposal_outlives_faults_and_a_follower_follows_none(scene: Any, fake: Any) -> None:
    async with scene(fake) as here:
        here.workload(size=1)
        await here.begin()
        fake.fault("fail?code=500&resource=statefulsets&count=3")
        fake.fault("fail?code=409&verb=patch&resource=statefulsets&count=1")
        here.scaler.propose(MORE)
        await here.until(lambda: here.scaler.changes == 1, within_s=15.0)
        assert (here.scaler.errors, here.size()) == (4, 2)
        here.leads = False
        here.settle("p", 2)
        here.scaler.propose(MORE)
        await asyncio.sleep(0.4)
        assert here.size() == 2


async def test_role_labels_follow_roles(scene: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.role_labels.EVERY_S", 0.05)
    async with scene(server) as here:
        here.workload()
        await here.begin()
        spec = {"containers": [{"name": "c", "image": "i"}]}
        here.admin.do("POST", PODS, body={"metadata": {"name": "p-0"}, "spec": spec})
        here.fleet.put("p-0", role=Role.MIXED)
        here.fleet.put("elsewhere")

        def label() -> str | None:
            found: str | None = (
                here.admin.do("GET", PODS, "p-0")["metadata"].get("labels", {}).get("phaseserve.dev/role")
            )
            return found

        await here.until(lambda: label() == "mixed")
        here.fleet.put("p-0", role=Role.DECODE)
        await here.until(lambda: label() == "decode")
        await here.until(lambda: here.labels.errors == 1)  # no pod of that name: asked once
        assert here.labels.patches == 2
