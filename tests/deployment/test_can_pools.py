"""CAN: a client that leaves, or a request cancelled by its id, ends both legs at once, whatever they are doing."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

WISH = {"layout": "disaggregated", "on_unavailable": "fail"}
LONG = 1900
"""Tokens of a prompt of 30 chunks."""


def prompt_of(length: int, salt: int) -> list[int]:
    return [1000 + (length * 7907 + salt * 104729 + i * 15485) % 40000 for i in range(length)]


def idle(server: Any) -> bool:
    held = ("running", "receiving", "sending", "waiting")
    return all(server.gauge(f"phaseserve_replica_{name}") == 0 for name in held)


def eventually(check: Callable[[], bool], deadline_s: float = 10.0) -> None:
    deadline = time.monotonic() + deadline_s
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.02)


async def leave(
    server: Any, prompt: list[int], *, chunks: int | None = None, after_s: float = 60.0, **fields: Any
) -> None:
    """Ask, and close the connection after some chunks or some time."""
    body = {"model": server.model, "prompt": prompt, "temperature": 0, "ignore_eos": True, "phaseserve": WISH, **fields}
    async with httpx.AsyncClient(timeout=60) as client:
        with contextlib.suppress(TimeoutError):
            async with (
                asyncio.timeout(after_s),
                client.stream("POST", f"{server.url}/v1/completions", json=body) as got,
            ):
                num_seen = 0
                async for line in got.aiter_lines():
                    num_seen += line.startswith("data: ")
                    if num_seen == chunks:
                        return


async def all_leave(server: Any, number: int, length: int, **fields: Any) -> None:
    await asyncio.gather(*(leave(server, prompt_of(length, 1000 + salt), **fields) for salt in range(number)))


def works(server: Any) -> None:
    assert server.completion("hi", max_tokens=2, phaseserve=WISH)["choices"][0]["finish_reason"] in {"stop", "length"}


def test_can_1_streams_closed_after_three_chunks(pair: Any) -> None:
    asyncio.run(all_leave(pair, 20, 100, stream=True, max_tokens=1500, chunks=3))
    eventually(lambda: idle(pair))
    works(pair)


def test_can_2_whole_answers_nobody_waits_for(pair: Any) -> None:
    asyncio.run(all_leave(pair, 20, 100, max_tokens=1900, after_s=0.5))
    eventually(lambda: idle(pair))
    works(pair)


@pytest.mark.parametrize("stream", [False, True])
def test_can_4_6_long_prompts_left_in_mid_prefill(pair: Any, stream: bool) -> None:
    """What is left to compute of ten prompts of 30 chunks is not computed."""
    name = "phaseserve_replica_prompt_tokens_computed_total"
    before = pair.gauge(name)
    asyncio.run(all_leave(pair, 10, LONG, max_tokens=1, after_s=0.3, stream=stream, logit_bias={"7": 1}))
    works(pair)
    eventually(lambda: idle(pair))
    assert pair.gauge(name) - before < 10 * LONG * 0.9
    eventually(lambda: pair.gauge("phaseserve_requests_in_flight") == 0)


def cancel(server: Any, request_id: str) -> int:
    status: int = httpx.post(f"{server.url}/v1/requests/{request_id}/cancel", timeout=10).status_code
    return status


@pytest.mark.parametrize("state", ["prefill", "decode"])
def test_can_7_one_id_ends_it_wherever_it_is(pair: Any, state: str) -> None:
    async def ask() -> httpx.Response:
        body = {"model": pair.model, "prompt": prompt_of(LONG, 30), "max_tokens": 100, "ignore_eos": True, "n": 2}
        headers = {"x-request-id": f"t-{state}"}
        async with httpx.AsyncClient(timeout=60) as client:
            url = f"{pair.url}/v1/completions"
            return await client.post(url, json={**body, "logit_bias": {"8": 1}, "phaseserve": WISH}, headers=headers)

    async def go() -> None:
        asking = asyncio.create_task(ask())
        gauge = f"phaseserve_replica_{'running' if state == 'decode' else 'receiving'}"
        while not asking.done() and not await asyncio.to_thread(pair.gauge, gauge):  # noqa: ASYNC110  (a metric)
            await asyncio.sleep(0.005)
        status = await asyncio.to_thread(cancel, pair, f"t-{state}")
        answer = await asyncio.wait_for(asking, 10)
        if status == 200:  # otherwise the whole answer was quicker than this test
            assert answer.status_code == 499
            assert answer.json()["error"]["code"] == "cancelled"
        else:
            assert (status, answer.status_code) == (404, 200)
        assert await asyncio.to_thread(cancel, pair, f"t-{state}") == 404

    assert cancel(pair, "nope") == 404
    asyncio.run(go())
    eventually(lambda: idle(pair))
    works(pair)


@pytest.mark.slow
def test_a_hand_off_whose_client_left_at_any_moment_leaves_every_block_free(pair: Any) -> None:
    free = pair.gauge("phaseserve_replica_free_blocks")

    async def go() -> None:
        async with asyncio.timeout(60):
            for turn in range(3):
                after = [0.02 * (turn + 4 * salt) for salt in range(8)]
                some = (
                    leave(pair, prompt_of(300, 40 + turn * 8 + k), after_s=s, max_tokens=20, n=1 + k % 3)
                    for k, s in enumerate(after)
                )
                await asyncio.gather(*some)

    asyncio.run(go())
    eventually(lambda: idle(pair))
    assert pair.gauge("phaseserve_replica_free_blocks") == free
    works(pair)
