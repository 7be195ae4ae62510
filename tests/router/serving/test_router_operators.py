"""Roles and drains by REST: who may, what is refused and how, and that the wish reaches the replica."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

TOKEN = "a-token-of-the-operators"


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


@pytest.fixture
async def fleet_of_two(start_router: Any, two_replicas: Any) -> Any:
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)
    return router


async def roles(router: Any) -> dict[str, str]:
    shown = (await router.http.get("/fleet")).json()["replicas"]
    return {replica["replica_id"]: replica["role"] for replica in shown}


async def test_a_wish_is_answered_at_once_and_fulfilled(fleet_of_two: Any) -> None:
    answer = await fleet_of_two.http.post("/fleet/replicas/r1/role", json={"role": "alternating"})
    assert answer.status_code == 202
    entry = answer.json()
    assert (entry["role"], entry["wanted_role"], entry["pinned"]) == ("mixed", "alternating", True)
    async with asyncio.timeout(5):
        while await roles(fleet_of_two) != {"r0": "mixed", "r1": "alternating"}:  # noqa: ASYNC110
            await asyncio.sleep(0.005)
    told = (await fleet_of_two.http.get("/fleet/decisions")).json()["decisions"]
    assert {"role_requested", "role_pinned", "role_changed"} <= {decision["kind"] for decision in told}
    assert all(decision["reason"] for decision in told)
    assert len((await fleet_of_two.http.get("/fleet/decisions?limit=1")).json()["decisions"]) == 1


async def test_a_drain_reaches_the_replica_and_the_last_one_stays(fleet_of_two: Any, two_replicas: Any) -> None:
    answer = await fleet_of_two.http.post("/fleet/replicas/r1/drain")
    assert answer.status_code == 202
    assert answer.json()["closed"] == "draining"
    await until(lambda: two_replicas[1].drains > 0)
    refused = await fleet_of_two.http.post("/fleet/replicas/r0/drain")
    assert refused.status_code == 409
    assert "no other replica" in refused.json()["error"]["message"]
    assert two_replicas[0].drains == 0


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("r9/role", {"role": "mixed"}, 404, "r9"),
        ("r9/drain", None, 404, "r9"),
        ("r0/role", {"role": "prefill"}, 409, "no data plane"),
        ("r0/role", {"role": "prefil"}, 400, "role"),
        ("r0/role", {}, 400, "role"),
        ("r0/role", {"role": "mixed", "pinned": "yes"}, 400, "pinned"),
        ("r0/role", {"role": "mixed", "pin": True}, 400, "pin"),
        ("r0/role", None, 400, "JSON"),
    ],
)
async def test_what_cannot_be_is_refused_by_name(
    fleet_of_two: Any, path: str, body: dict[str, Any] | None, status: int, says: str
) -> None:
    answer = await fleet_of_two.http.post(f"/fleet/replicas/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert says in answer.json()["error"]["message"]
    assert await roles(fleet_of_two) == {"r0": "mixed", "r1": "mixed"}


@pytest.mark.parametrize(
    "headers", [{"origin": "https://elsewhere.example"}, {"x-forwarded-for": "10.0.0.1"}, {"forwarded": "for=10.0.0.1"}]
)
async def test_without_a_token_only_programs_of_this_machine_may(fleet_of_two: Any, headers: dict[str, str]) -> None:
    for path, body in (("r0/role", {"role": "alternating"}), ("r0/drain", None)):
        answer = await fleet_of_two.http.post(f"/fleet/replicas/{path}", json=body, headers=headers)
        assert answer.status_code == 403
        assert "admin_token" in answer.json()["error"]["message"]
    far = httpx.ASGITransport(app=fleet_of_two.app, client=("192.0.2.7", 50000))
    async with httpx.AsyncClient(transport=far, base_url="http://router") as client:
        assert (await client.post("/fleet/replicas/r0/drain")).status_code == 403
        assert (await client.get("/fleet")).status_code == 200
    near = httpx.ASGITransport(app=fleet_of_two.app, client=("::ffff:127.0.0.1", 50000))
    async with httpx.AsyncClient(transport=near, base_url="http://router") as client:
        assert (await client.post("/fleet/replicas/r0/role", json={"role": "mixed"})).status_code == 202


@pytest.mark.parametrize(
    ("authorization", "status"),
    [(None, 403), ("Bearer wrong", 403), (f"Basic {TOKEN}", 403), (f"bearer {TOKEN}", 202), (f"Bearer {TOKEN}", 202)],
)
async def test_with_a_token_everybody_needs_it(
    start_router: Any, replica: Any, authorization: str | None, status: int
) -> None:
    router = await start_router(replica, admin_token=TOKEN)
    headers = {} if authorization is None else {"authorization": authorization}
    answer = await router.http.post("/fleet/replicas/r0/role", json={"role": "mixed"}, headers=headers)
    assert answer.status_code == status
    assert TOKEN not in (await router.http.get("/fleet")).text


@pytest.mark.parametrize(
    ("replica_id", "role", "status"),
    [("x" * 10_000, "mixed", 404), ("%F0%9F%98%80" * 500, "mixed", 404), ("r0", "x" * 1_000_000, 400)],
    ids=["long name", "long name of emojis", "long role"],
)
async def test_what_a_wish_says_is_not_repeated_at_length(
    fleet_of_two: Any, replica_id: str, role: str, status: int
) -> None:
    for act in ("role", "drain") if status == 404 else ("role",):
        answer = await fleet_of_two.http.post(f"/fleet/replicas/{replica_id}/{act}", json={"role": role})
        assert answer.status_code == status
        assert len(answer.content) < 2000
        assert answer.json()["error"]["param"] == ("replica_id" if status == 404 else "role")
