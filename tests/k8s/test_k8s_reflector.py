"""The reflector against an API server that restarts, forgets, drops, hangs, refuses and loses events."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from k8s.access import LIST_SLICES, WATCH_SLICES
from k8s.api import ApiClient
from k8s.credentials import find_cluster
from k8s.objects import EndpointSlice
from k8s.reflector import Reflector

SLICES = "apis/discovery.k8s.io/v1/endpointslices"
LABELS = {"app.kubernetes.io/name": "phaseserve"}
SELECTOR = "app.kubernetes.io/name=phaseserve"
QUICK = {"watch_s": 1.0, "slack_s": 0.5, "max_backoff_s": 0.5, "relist_s": 600.0}


def body(name: str, *addresses: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {"name": name, "labels": LABELS if labels is None else labels},
        "addressType": "IPv4",
        "ports": [{"name": "control", "port": 5, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in addresses],
    }


class Scene:
    """A running reflector, the administrator of its namespace, and every copy it told of."""

    def __init__(self, server: Any, admin: Any, reflector: Reflector[EndpointSlice]) -> None:
        self.server, self.admin, self.reflector = server, admin, reflector
        self.told: list[list[str]] = []

    def heard(self, items: Mapping[str, EndpointSlice]) -> None:
        self.told.append(sorted(items))

    def add(self, name: str) -> None:
        self.admin.do("POST", SLICES, body=body(name, "10.0.0.1"))

    async def knows(self, *names: str, within_s: float = 10.0) -> None:
        async with asyncio.timeout(within_s):
            while sorted(self.reflector.items) != sorted(names):  # noqa: ASYNC110  (what another process does)
                await asyncio.sleep(0.02)

    async def until(self, check: Callable[[Reflector[EndpointSlice]], bool], within_s: float = 10.0) -> None:
        async with asyncio.timeout(within_s):
            while not check(self.reflector):  # noqa: ASYNC110
                await asyncio.sleep(0.02)


@pytest.fixture
def scene(tmp_path: Path, admin_of: Callable[[Any], Any]) -> Callable[..., Any]:
    @asynccontextmanager
    async def make(server: Any, token: str = "admin-token", **settings: float) -> AsyncIterator[Scene]:
        admin = admin_of(server)
        cluster = await find_cluster(str(server.kubeconfig(tmp_path, admin.namespace, token)))
        async with ApiClient(cluster, cluster.namespace) as api:
            found: list[Scene] = []
            reflector = Reflector(
                api,
                (LIST_SLICES, WATCH_SLICES),
                EndpointSlice,
                SELECTOR,
                lambda items: found[0].heard(items),  # noqa: PLW0108  (it is not there yet)
                **{**QUICK, **settings},
            )
            found.append(Scene(server, admin, reflector))
            task = asyncio.create_task(reflector.run())
            try:
                yield found[0]
            finally:
                task.cancel()
                await asyncio.wait([task])

    return make


async def test_it_follows_what_comes_changes_and_goes_without_listing_again(scene: Any, server: Any) -> None:
    async with scene(server) as here:
        await here.until(lambda reflector: reflector.synced)
        here.add("a")
        here.admin.do("POST", SLICES, body=body("other", labels={"app.kubernetes.io/name": "else"}))
        await here.knows("a")
        here.admin.do("PATCH", SLICES, "a", {"metadata": {"labels": {"x": "1"}}})
        await here.until(lambda reflector: (reflector.items["a"].metadata.labels or {}).get("x") == "1")
        here.add("b")
        here.admin.do("PATCH", SLICES, "a", {"metadata": {"labels": {"app.kubernetes.io/name": "else"}}})
        await here.knows("b")
        await here.until(lambda reflector: reflector.watches >= 3)  # each a second long
        here.admin.do("DELETE", SLICES, "b")
        await here.knows()
        assert (here.reflector.lists, here.reflector.errors) == (1, 0)
        assert here.told == [[], ["a"], ["a"], ["a", "b"], ["b"], []]


async def test_it_reads_lists_in_pages(scene: Any, server: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("k8s.reflector.PAGE", "2")
    async with scene(server, relist_s=1.0) as here:
        for number in range(5):
            here.add(f"s{number}")
        await here.until(lambda reflector: reflector.lists >= 4)
        await here.knows(*(f"s{number}" for number in range(5)))


async def test_a_server_that_restarts_is_found_again_with_what_happened_meanwhile(scene: Any, server: Any) -> None:
    async with scene(server) as here:
        here.add("a")
        here.add("b")
        await here.knows("a", "b")
        server.kill()
        await here.until(lambda reflector: reflector.errors >= 2)
        assert sorted(here.reflector.items) == ["a", "b"]
        await asyncio.to_thread(server.start)
        here.admin.do("DELETE", SLICES, "a")
        here.add("c")
        await here.knows("b", "c", within_s=20.0)


async def test_dropped_connections_are_resumed(scene: Any, fake: Any) -> None:
    async with scene(fake, watch_s=30.0) as here:
        here.add("a")
        await here.knows("a")
        fake.fault("drop")
        here.add("b")
        await here.knows("a", "b")
        assert here.reflector.lists == 1


async def test_a_forgotten_version_is_listed_again_once(scene: Any, fake: Any) -> None:
    async with scene(fake, watch_s=30.0) as here:
        here.add("a")
        await here.knows("a")
        fake.fault("compact")
        here.add("b")
        await here.knows("a", "b")
        assert here.reflector.lists == 2


SLOW = pytest.mark.slow


@pytest.mark.parametrize("code", [403, pytest.param(429, marks=SLOW), pytest.param(500, marks=SLOW)])
async def test_refusals_are_waited_out_and_the_last_copy_is_kept(scene: Any, fake: Any, code: int, caplog: Any) -> None:
    caplog.set_level(logging.INFO, "phaseserve.k8s")
    async with scene(fake, watch_s=30.0, max_backoff_s=0.4) as here:
        here.add("a")
        await here.knows("a")
        before = fake.num_requests()
        fake.fault(f"fail?code={code}&verb=watch&resource=endpointslices&count=100000")
        fake.fault("drop")
        here.add("b")
        await here.until(lambda reflector: reflector.errors >= 5)
        assert fake.num_requests() - before <= 12  # not hundreds a second
        assert sorted(here.reflector.items) == ["a"]
        assert str(code) in (here.reflector.trouble or "") or "injected" in (here.reflector.trouble or "")
        warnings = [record for record in caplog.records if record.levelno == logging.WARNING]
        assert 1 <= len(warnings) <= 2  # each trouble is said once: the drop, the refusal
        fake.fault("clear")
        await here.knows("a", "b")
        assert (here.reflector.lists, here.reflector.trouble) == (1, None)


async def test_who_may_not_look_is_told_so_in_clear_words(scene: Any, server: Any, caplog: Any) -> None:
    async with scene(server, token="router-token") as here:
        await here.until(lambda reflector: reflector.errors >= 1)
        trouble = here.reflector.trouble or ""
        assert 'User "router" cannot list resource "endpointslices"' in trouble
        assert here.admin.namespace in trouble
        assert not here.reflector.synced


async def test_an_open_connection_that_says_nothing_is_given_up(scene: Any, fake: Any) -> None:
    async with scene(fake, watch_s=1.0, slack_s=0.3) as here:
        here.add("a")
        await here.knows("a")
        fake.fault("hang?on=1")
        await here.until(lambda reflector: reflector.errors >= 1)
        assert "no answer within" in (here.reflector.trouble or "")
        fake.fault("hang?on=0")
        here.add("b")
        await here.knows("a", "b")
        assert here.reflector.lists == 1


async def test_lost_events_are_made_up_for(scene: Any, fake: Any) -> None:
    async with scene(fake, relist_s=1.5) as here:
        here.add("a")
        await here.knows("a")
        fake.fault("mute?on=1")
        here.add("b")
        here.admin.do("DELETE", SLICES, "a")
        await here.knows("b")
        assert here.reflector.errors == 0


@SLOW
async def test_a_slow_server_is_no_error(scene: Any, fake: Any) -> None:
    fake.fault("slow?s=0.4")
    async with scene(fake) as here:
        await here.until(lambda reflector: reflector.synced)
        fake.fault("clear")
        here.add("a")
        await here.knows("a")
        assert here.reflector.errors == 0
