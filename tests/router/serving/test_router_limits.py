"""Bounds on bodies, and metrics whose series no client can add to (VAL-4, VAL-7, OBS-1)."""

from __future__ import annotations

import asyncio
import resource
import time
from typing import Any

import pytest

LIMIT = 64 * 1024


@pytest.mark.parametrize("size", [LIMIT + 1, 1 << 20, 10 << 20])
@pytest.mark.parametrize("chunked", [True, False])
async def test_val_7_a_body_over_the_limit_is_413_with_the_limit(
    start_router: Any, replica: Any, error_ok: Any, size: int, chunked: bool
) -> None:
    router = await start_router(replica, limits={"max_body_bytes": LIMIT})
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    async def pieces() -> Any:
        for _ in range(0, size, 1 << 14):
            yield b"x" * min(size, 1 << 14)

    content = pieces() if chunked else b"x" * size
    answer = await router.http.post("/v1/completions", content=content)
    assert str(LIMIT) in await error_ok(router.http, answer, 413)
    grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    assert grown_kib < 10 * 1024 + 2 * size // 1024  # the test's own copy, and no second one of the router's


async def test_val_7_the_largest_body_allowed_is_read(start_router: Any, replica: Any) -> None:
    router = await start_router(replica, limits={"max_body_bytes": LIMIT})
    raw = b'{"model": "tiny", "prompt": "hi"}'
    answer = await router.http.post("/v1/completions", content=raw + b" " * (LIMIT - len(raw)))
    assert answer.status_code == 200


async def test_val_4_absurd_prompts_do_not_hold_up_good_ones(router: Any, replica: Any, chat: Any) -> None:
    started = time.monotonic()
    bad = [router.http.post("/v1/chat/completions", json=chat("a " * 51_200)) for _ in range(10)]
    good = [router.http.post("/v1/chat/completions", json=chat()) for _ in range(10)]
    answers = await asyncio.gather(*bad, *good)
    assert [answer.status_code for answer in answers] == [400] * 10 + [200] * 10
    assert time.monotonic() - started < 10


async def test_obs_1_clients_cannot_add_series(router: Any, chat: Any) -> None:
    await router.http.post("/v1/chat/completions", json=chat())
    await router.http.post("/v1/chat/completions", json=chat(model="other"))

    async def num_series() -> int:
        text = (await router.http.get("/metrics")).text
        return sum(not line.startswith("#") for line in text.splitlines())

    before = await num_series()
    for i in range(20):
        body = {**chat(user=f"user{i}", priority=i), "model": f"model{i}"}
        headers = {"x-request-id": f"id{i}", "x-tenant": f"t{i}"}
        answer = await router.http.post("/v1/chat/completions", json=body, headers=headers)
        assert answer.status_code == 404
        body["model"] = "tiny"
        assert (await router.http.post("/v1/chat/completions", json=body, headers=headers)).status_code == 200
    assert await num_series() == before


async def test_metrics_count_what_happened(router: Any, replica: Any, chat: Any) -> None:
    replica.pace_s = 0.002
    answer = await router.http.post("/v1/chat/completions", json=chat(n=2))
    await router.http.post("/v1/chat/completions", json=chat(max_tokens=1))
    await router.http.post("/v1/chat/completions", json=chat(max_tokens=0))
    lines = (await router.http.get("/metrics")).text.splitlines()
    values = {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))}
    usage = answer.json()["usage"]
    assert values['phaseserve_requests_total{endpoint="chat",outcome="stop"}'] == 1
    assert values['phaseserve_requests_total{endpoint="chat",outcome="length"}'] == 1
    assert values['phaseserve_requests_total{endpoint="chat",outcome="bad_request"}'] == 1
    assert values["phaseserve_output_tokens_total"] == usage["completion_tokens"] + 1
    assert values["phaseserve_prompt_tokens_total"] == 2 * usage["prompt_tokens"]
    assert values["phaseserve_ttft_seconds_count"] == 2
    assert values["phaseserve_tpot_seconds_count"] == 2
    assert values["phaseserve_tpot_after_switch_seconds_count"] == 2
    assert values["phaseserve_itl_seconds_count"] == usage["completion_tokens"] - 2
    assert values["phaseserve_ttft_prediction_error_seconds_count"] == 2
    assert 'phaseserve_replica_free_blocks{replica="r0"}' in values


async def test_more_open_requests_than_allowed_are_turned_away(start_router: Any, gated: Any, chat: Any) -> None:
    router = await start_router(gated, limits={"max_open": 3})
    asked = [asyncio.create_task(router.http.post("/v1/chat/completions", json=chat())) for _ in range(3)]
    async with asyncio.timeout(5):
        while router.fleet.num_flights < 3:  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)
    refused = await router.http.post("/v1/chat/completions", json=chat())
    assert refused.status_code == 429
    assert refused.headers["retry-after"] == "1"
    gated.gate.set()
    assert [answer.status_code for answer in await asyncio.gather(*asked)] == [200] * 3
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200
