"""What a request may wish of layouts, what is told of pairs, and what is refused before anything is dispatched."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from contracts.errors import ErrorInfo

PAIR = {"phaseserve": {"layout": "disaggregated", "on_unavailable": "fail"}}


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


async def test_nothing_over_the_limit_is_dispatched(start_router: Any, pools: Any) -> None:
    p, d = await pools("pd")
    router = await start_router(p, d, max_context=64)
    for length, status in ((55, 200), (56, 200), (57, 400), (63, 400), (64, 400), (65, 400)):
        body = {"model": "tiny", "prompt": [5] * length, "max_tokens": 8, **PAIR}
        before = len(d.submits), len(p.submits)
        answer = await router.http.post("/v1/completions", json=body)
        assert answer.status_code == status, answer.text
        if status == 400:
            assert "64" in answer.json()["error"]["message"]
            assert (len(d.submits), len(p.submits)) == before


MISMATCH = "block_size: 16 here, 24 there"


@pytest.mark.parametrize("wish", ["fail", "colocate"])
async def test_a_pair_that_does_not_fit_is_named(start_router: Any, pools: Any, chat: Any, wish: str) -> None:
    p, d = await pools("pd")
    p.links = tuple(msgspec.structs.replace(link, why_not=MISMATCH, bytes_per_s=None) for link in p.links)
    router = await start_router(p, d, ready=False)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)
    extension = {"phaseserve": {"layout": "disaggregated", "on_unavailable": wish}}
    answer = await router.http.post("/v1/chat/completions", json=chat(**extension))
    metrics = (await router.http.get("/metrics")).text
    if wish == "fail":
        assert answer.status_code == 503
        assert MISMATCH in answer.json()["error"]["message"]
        assert d.submits == []
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
        assert MISMATCH in answer.headers["x-phaseserve-fallback"]
        assert "x-phaseserve-prefill-replica" not in answer.headers
        assert 'phaseserve_fallbacks_total{reason="no_link"} 1.0' in metrics
        decision = (await router.http.get("/decisions?limit=1")).json()["decisions"][0]
        assert MISMATCH in decision["plan"]["fallback"]
    assert 'phaseserve_link_usable{peer="d0",replica="p0"} 0.0' in metrics
    assert "phaseserve_link_bytes_per_second{" not in metrics
    shown = (await router.http.get("/fleet")).json()["replicas"]
    assert [link["why_not"] for replica in shown for link in replica["links"]] == [MISMATCH]


async def test_errors_of_placed_requests_say_where_they_were(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    p.refuse_with = ErrorInfo(status=400, code="invalid_request", message="too long for me", param="prompt")
    router = await start_router(p, d)
    answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR), headers={"x-request-id": "mine"})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == "too long for me"
    assert answer.headers["x-request-id"] == "mine"
    assert answer.headers["x-phaseserve-prefill-replica"] == "p0"


@pytest.mark.parametrize(
    ("extension", "param"),
    [
        ({"layout": "sideways"}, "phaseserve.layout"),
        ({"layout": 3}, "phaseserve.layout"),
        ({"on_unavailable": "recompute"}, "phaseserve.on_unavailable"),
        ({"lay_out": "auto"}, "phaseserve.lay_out"),
        ("disaggregated", "phaseserve"),
    ],
)
async def test_wishes_that_are_none(router: Any, chat: Any, error_ok: Any, extension: Any, param: str) -> None:
    answer = await router.http.post("/v1/chat/completions", json=chat(phaseserve=extension))
    await error_ok(router.http, answer, 400, param)


@pytest.mark.parametrize("wish", [None, {}, {"layout": "auto"}, {"layout": None, "on_unavailable": "colocate"}])
async def test_wishes_of_nothing(router: Any, chat: Any, wish: Any) -> None:
    answer = await router.http.post("/v1/chat/completions", json=chat(phaseserve=wish))
    assert answer.status_code == 200
    assert answer.headers["x-phaseserve-layout"] == "colocated"


async def test_metrics_decisions_and_fleet(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    router = await start_router(p, d)
    await router.http.post("/v1/chat/completions", json=chat(n=2, **PAIR))
    await router.wait_idle(p, d)
    decision = (await router.http.get("/decisions?limit=1")).json()["decisions"][0]
    assert decision["plan"]["replica_id"] == "d0"
    assert decision["plan"]["prefill_replica_id"] == "p0"
    assert decision["plan"]["prediction"]["transfer_s"] > 0
    handoff = decision["outcome"]["handoff"]
    assert handoff["num_bytes"] == 2000
    assert handoff["hidden_share"] == pytest.approx(0.75)
    metrics = (await router.http.get("/metrics")).text
    for line in (
        'phaseserve_layout_requests_total{layout="disaggregated"} 1.0',
        'phaseserve_handoffs_total{outcome="completed"} 2.0',
        "phaseserve_handoff_bytes_total 2000.0",
        "phaseserve_handoff_exposed_seconds_count 2.0",
        'phaseserve_link_bytes_per_second{peer="d0",replica="p0"} 1e+09',
        'phaseserve_link_usable{peer="d0",replica="p0"} 1.0',
        'phaseserve_link_info{device="none",peer="d0",replica="p0",transport="test"} 1.0',
        'phaseserve_link_transfers_total{outcome="completed",peer="d0",replica="p0"} 3.0',
        'phaseserve_replica_prompt_tokens_computed_total{replica="d0"} 0.0',
        'phaseserve_replica_receiving{replica="d0"} 0.0',
        'phaseserve_fallbacks_total{reason="no_link"} 0.0',
    ):
        assert line in metrics, line
    fleet = (await router.http.get("/fleet")).json()
    shown = {replica["replica_id"]: replica for replica in fleet["replicas"]}
    assert shown["p0"]["role"] == "prefill"
    assert shown["p0"]["links"][0]["gb_per_s"] == pytest.approx(1.0)
    assert shown["d0"]["data_endpoints"] == ["tcp://127.0.0.1:7001"]
    assert fleet["not_joined"] == []


async def test_prefill_replicas_are_told_of_decode_replicas(start_router: Any, pools: Any) -> None:
    p, d, _ = await pools("pdm")
    router = await start_router(p, d)
    await until(lambda: p.peers and p.peers[-1])
    assert [(peer.replica_id, peer.endpoints) for peer in p.peers[-1]] == [("d0", ("tcp://127.0.0.1:7001",))]
    assert p.peers[-1][0].fingerprint == d.identity.fingerprint
    assert d.peers == []
    d.identity = msgspec.structs.replace(d.identity, incarnation="i2")
    await d.tell_raw(msgspec.msgpack.encode({"type": "Goodbye", "reason": "restarting"}))
    await until(lambda: p.peers[-1] and p.peers[-1][0].incarnation == "i2")
    assert () in p.peers
    await until(lambda: router.fleet.not_ready() is None or "link" in router.fleet.not_ready())
