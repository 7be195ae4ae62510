"""Elections on a real protocol: one leads, never two, whatever the API server does and whatever clocks say."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from k8s.api import ApiClient
from k8s.config import ElectionConfig
from k8s.credentials import find_cluster
from k8s.election import NOBODY, Election

LEASES = "apis/coordination.k8s.io/v1/leases"
QUICK = ElectionConfig(enabled=True, duration_s=2.0, deadline_s=1.2, retry_s=0.3)


class Candidates:
    """`log` holds (+1 or -1, name, when) as each begins and ends to lead; `heard` what each was told last."""

    def __init__(self, server: Any, admin: Any, kubeconfig: str, stack: AsyncExitStack) -> None:
        self.server, self.admin = server, admin
        self.log: list[tuple[int, str, float]] = []
        self.heard: dict[str, str | None] = {}
        self.elections: dict[str, Election] = {}
        self._kubeconfig, self._stack = kubeconfig, stack
        self._tasks: dict[str, asyncio.Task[None]] = {}

    async def start(self, name: str, config: ElectionConfig = QUICK) -> None:
        cluster = await find_cluster(self._kubeconfig)
        api = await self._stack.enter_async_context(ApiClient(cluster, cluster.namespace))

        def changed(leader: str | None) -> None:
            before, self.heard[name] = self.heard.get(name, NOBODY), leader
            if (leader is None) != (before is None):
                self.log.append((1 if leader is None else -1, name, time.monotonic()))

        self.elections[name] = Election(api, config, name, changed)
        self._tasks[name] = asyncio.create_task(self.elections[name].run())

    async def stop(self, name: str) -> None:
        """As on SIGTERM."""
        task = self._tasks.pop(name)
        task.cancel()
        await asyncio.wait([task])

    async def end(self) -> None:
        for name in list(self._tasks):
            await self.stop(name)

    async def until(self, num: int, within_s: float = 10.0) -> None:
        async with asyncio.timeout(within_s):
            while len(self.log) < num:  # noqa: ASYNC110  (what another process leads to)
                await asyncio.sleep(0.02)

    def check_never_two(self) -> None:
        leading = 0
        for change, _, _ in self.log:
            leading += change
            assert 0 <= leading <= 1, self.log

    @property
    def lease(self) -> dict[str, Any]:
        spec: dict[str, Any] = self.admin.do("GET", LEASES, QUICK.lease)["spec"]
        return spec


@pytest.fixture
def candidates(tmp_path: Path, admin_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    @asynccontextmanager
    async def make(server: Any) -> AsyncIterator[Candidates]:
        admin = admin_of(server)
        kubeconfig = str(server.kubeconfig(tmp_path, admin.namespace))
        async with AsyncExitStack() as stack:
            found = Candidates(server, admin, kubeconfig, stack)
            try:
                yield found
            finally:
                if not server.real:
                    server.fault("clear")
                await found.end()
                found.check_never_two()

    return make


async def test_a_clean_stop_hands_over_at_once(candidates: Any, server: Any) -> None:
    async with candidates(server) as them:
        await them.start("a", ElectionConfig(enabled=True))  # with the settings that are shipped
        await them.until(1)
        await them.start("b", ElectionConfig(enabled=True))
        await asyncio.sleep(0.5)
        assert them.heard == {"a": None, "b": "a"}
        began = time.monotonic()
        await them.stop("a")
        await them.until(3)
        assert [entry[:2] for entry in them.log] == [(1, "a"), (-1, "a"), (1, "b")]
        assert them.log[2][2] - began < 2.5
        assert (them.lease["holderIdentity"], them.lease["leaseTransitions"]) == ("b", 1)


LONG_AGO = pytest.param("1990-01-01T00:00:00.000001Z", marks=pytest.mark.slow)


@pytest.mark.parametrize("renewed", ["2090-01-01T00:00:00.000001Z", LONG_AGO])
async def test_a_dead_leaders_lease_runs_out_by_our_clock_whatever_its_own_said(
    candidates: Any, server: Any, renewed: str
) -> None:
    async with candidates(server) as them:
        spec = {"holderIdentity": "dead", "leaseDurationSeconds": 2, "renewTime": renewed}
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": QUICK.lease}}
        them.admin.do("POST", LEASES, body={**body, "spec": spec})
        began = time.monotonic()
        await them.start("b")
        await them.until(1)
        assert 2.0 <= them.log[0][2] - began < 5.0


REFUSED = pytest.param("fail?code=500&resource=leases&count=100000", marks=pytest.mark.slow)


@pytest.mark.parametrize("fault", [REFUSED, "hang?on=1"])
async def test_a_leader_that_cannot_renew_stops_before_anybody_else_may_begin(
    candidates: Any, fake: Any, fault: str
) -> None:
    async with candidates(fake) as them:
        await them.start("a")
        await them.until(1)
        last = time.monotonic()
        fake.fault(fault)
        await them.until(2)
        assert them.log[1][:2] == (-1, "a")
        assert them.log[1][2] - last < QUICK.duration_s
        assert not them.elections["a"].leads
        fake.fault("clear")
        await them.until(3)


@pytest.mark.slow
async def test_a_server_that_is_killed_ends_leading_in_time_and_it_begins_again(candidates: Any, server: Any) -> None:
    async with candidates(server) as them:
        await them.start("a")
        await them.until(1)
        last = time.monotonic()
        server.kill()
        await them.until(2)
        assert them.log[1][2] - last < QUICK.duration_s
        await asyncio.to_thread(server.start)
        await them.until(3, within_s=20.0)


async def test_a_process_that_stood_still_does_not_lead_when_it_goes_on(candidates: Any, fake: Any) -> None:
    """A router that was frozen longer than its lease asks `leads` before its own timers have run."""
    async with candidates(fake) as them:
        await them.start("a")
        await them.until(1)
        time.sleep(QUICK.deadline_s + 0.1)  # noqa: ASYNC251  (the whole event loop stands still)
        assert not them.elections["a"].leads


@pytest.mark.slow
async def test_of_many_one_leads_at_a_time_through_stops_kills_and_faults(candidates: Any, fake: Any) -> None:
    async with candidates(fake) as them:
        for name in "abcd":
            await them.start(name)
        await them.until(1)
        for round_ in range(3):
            leader = next(name for change, name, _ in reversed(them.log) if change == 1)
            seen = len(them.log)
            if round_ % 2:
                fake.fault("fail?code=503&resource=leases&count=12")
            await them.stop(leader)
            await them.until(seen + 2, within_s=15.0)
            await them.start(leader)
        fake.fault("fail?code=409&verb=update&resource=leases&count=8")
        await asyncio.sleep(2.0)
        them.check_never_two()


@pytest.mark.slow
async def test_a_frozen_server_changes_nothing_about_that(candidates: Any, fake: Any) -> None:
    async with candidates(fake) as them:
        await them.start("a")
        await them.start("b")
        await them.until(1)
        last = time.monotonic()
        os.kill(fake.pid, signal.SIGSTOP)
        try:
            await them.until(2)
            assert them.log[1][2] - last < QUICK.duration_s
        finally:
            os.kill(fake.pid, signal.SIGCONT)
        await them.until(3)


async def test_without_the_right_to_leases_nobody_leads(tmp_path: Path, admin_of: Any, server: Any) -> None:
    admin = admin_of(server)
    cluster = await find_cluster(str(server.kubeconfig(tmp_path, admin.namespace, "router-token")))
    heard: list[str | None] = []
    async with ApiClient(cluster, cluster.namespace) as api:
        election = Election(api, QUICK, "a", heard.append)
        task = asyncio.create_task(election.run())
        async with asyncio.timeout(5):
            while election.errors < 2:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        task.cancel()
        await asyncio.wait([task])
    assert heard == [NOBODY]
