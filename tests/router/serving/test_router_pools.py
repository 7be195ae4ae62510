"""One request, two replicas: what the client gets is what one replica would have given, and both are told right."""

from __future__ import annotations

import asyncio
import zlib
from typing import Any

import pytest

from contracts.errors import ErrorInfo
from contracts.handoff import DecodeLeg, PrefillLeg
from contracts.request import Request

PAIR = {"phaseserve": {"layout": "disaggregated", "on_unavailable": "fail"}}


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


def own_words(request: Request) -> list[int]:
    """Tokens that depend on all that a replica is told about a sequence, but on nothing else."""
    told = [request.prompt_token_ids, request.sampling.seed, request.sampling.temperature, request.sampling.min_tokens]
    at = zlib.crc32(repr(told).encode())
    return [10 + (at * (i + 7)) % 350 for i in range(40)]


BODIES = [
    ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 6}),
    ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "max_completion_tokens": 1}),
    ("chat/completions", {"messages": [{"role": "user", "content": "hi"}], "n": 3, "max_tokens": 4, "seed": 5}),
    (
        "chat/completions",
        {
            "messages": [{"role": "user", "content": "a"}],
            "logprobs": True,
            "top_logprobs": 2,
            "max_tokens": 3,
        },
    ),
    ("completions", {"prompt": "abc", "echo": True, "logprobs": 2, "max_tokens": 4}),
    ("completions", {"prompt": "abc", "echo": True, "logprobs": 1, "max_tokens": 1}),
    ("completions", {"prompt": ["a", "b"], "n": 2, "max_tokens": 3}),
    ("completions", {"prompt": [5, 6, 7], "max_tokens": 50, "min_tokens": 40, "ignore_eos": True}),
    ("completions", {"prompt": [[5, 6], [7, 8, 9]], "max_tokens": 2, "seed": 1}),
]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("path", "body"), BODIES)
async def test_the_answer_is_that_of_one_replica(
    start_router: Any, pools: Any, replica: Any, path: str, body: dict[str, Any], stream: bool
) -> None:
    p, d = await pools("pd")
    for each in (p, d, replica):
        each.reply = own_words
    pair, one = await start_router(p, d), await start_router(replica)
    asked = {"model": "tiny", "stream": stream, **body}
    if stream:
        asked["stream_options"] = {"include_usage": True}
    answers = [
        await pair.http.post(f"/v1/{path}", json={**asked, **PAIR}, headers={"x-request-id": "same"}),
        await one.http.post(f"/v1/{path}", json=asked, headers={"x-request-id": "same"}),
    ]
    texts = [same_moment(answer.text) for answer in answers]
    if stream:  # choices may take turns in another order
        assert sorted(texts[0].split("\n\n")) == sorted(texts[1].split("\n\n"))
    else:
        assert texts[0] == texts[1]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert {type(request.leg) for request in p.submits} == {PrefillLeg}
    assert {type(request.leg) for request in d.submits} == {DecodeLeg}
    assert [request.request_id for request in p.submits] == [request.request_id for request in d.submits]
    await pair.wait_idle(p, d)


def same_moment(text: str) -> str:
    """Without the second in which the answer was made."""
    head, found, rest = text.partition('"created":')
    if not found:
        return head
    return head + same_moment(rest.lstrip("0123456789"))


async def test_the_legs_carry_what_was_planned_and_reserved(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    p.cached_tokens, d.cached_tokens = 2, 1  # what D had never crossed, but P computed it
    router = await start_router(p, d)
    answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR))
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    assert answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"] == 2
    taken, given = d.submits[0].leg, p.submits[0].leg
    assert taken.prefill_replica_id == "p0"
    assert taken.expected_s > 0
    assert 0 < taken.link_bytes_per_s <= 1e9
    assert given.ticket.receiver_id == "d0"
    assert given.ticket.num_tokens == len(p.submits[0].prompt_token_ids)
    assert answer.headers["x-phaseserve-layout"] == "disaggregated"
    assert answer.headers["x-phaseserve-replica"] == "d0"
    assert answer.headers["x-phaseserve-prefill-replica"] == "p0"
    assert "x-phaseserve-fallback" not in answer.headers


async def test_the_first_token_does_not_wait_for_the_transfer(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    d.may_receive.clear()
    router = await start_router(p, d)
    body = chat(stream=True, **PAIR)
    async with router.http.stream("POST", "/v1/chat/completions", json=body) as answer:
        assert answer.headers["x-phaseserve-prefill-replica"] == "p0"
        parts = answer.aiter_bytes()
        received = await anext(parts)
        assert b'"content":"H' in received
        d.may_receive.set()
        async for part in parts:
            received += part
    assert received.endswith(b"data: [DONE]\n\n")
    await router.wait_idle(p, d)


async def test_a_receiver_that_leaves_the_first_token_out(start_router: Any, pools: Any, chat: Any) -> None:
    """Although the sender has said it: who does not know the first token did not get the hand-off. Each placement
    brings the sender's token, and there are three of them at most."""
    p, d = await pools("pd")
    words = "Hello world Hello world Hello"
    p.say(words)
    d.say(words)
    d.say_first = False
    router = await start_router(p, d)
    answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR))
    assert answer.status_code == 503
    assert "given up after 3 replicas" in answer.json()["error"]["message"]
    d.say_first = True
    answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR))
    assert answer.json()["choices"][0]["message"]["content"] == words
    await router.wait_idle(p, d)


@pytest.mark.parametrize(
    ("words", "fields", "finish"),
    [("", {}, "stop"), ("Hello", {"max_tokens": 1}, "length"), ("Hello", {"stop": ["H"]}, "stop")],
)
async def test_a_first_token_that_ends_it_ends_the_other_leg(
    start_router: Any, pools: Any, chat: Any, words: str, fields: dict[str, Any], finish: str
) -> None:
    p, d = await pools("pd")
    p.say(words)
    d.say(words)
    d.may_receive.clear()
    router = await start_router(p, d)
    answer = await router.http.post("/v1/chat/completions", json=chat(**fields, **PAIR))
    assert answer.json()["choices"][0]["finish_reason"] == finish
    assert answer.json()["usage"]["completion_tokens"] == 1
    await router.wait_idle(p, d)
    assert d.cancelled == [d.submits[0].request_id]
    metrics = (await router.http.get("/metrics")).text
    assert 'phaseserve_handoffs_total{outcome="not_needed"} 1.0' in metrics


async def test_a_client_that_leaves_ends_both_legs(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    router = await start_router(p, d)
    for held in (d.may_reserve, p.gate, d.may_receive):
        held.clear()
        before = len(d.submits)
        asked = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat(**PAIR)))
        await until(lambda seen=before: len(d.submits) > seen)
        if held is not d.may_reserve:
            await until(lambda: p.submits and p.submits[-1].request_id == d.submits[-1].request_id)
        if held is d.may_receive:
            await until(lambda: not p.alive)
        asked.cancel()
        await until(lambda: not p.alive and not d.alive)
        held.set()
        assert d.cancelled[-1] == d.submits[-1].request_id
    await router.wait_idle(p, d)
    assert len(p.submits) == 2
    assert sorted(p.cancelled) == sorted(request.request_id for request in p.submits)
    assert 'handoffs_total{outcome="cancelled"} 3.0' in (await router.http.get("/metrics")).text


@pytest.mark.parametrize("status", [500, 503])
@pytest.mark.parametrize("side", ["p", "d"])
async def test_a_leg_that_is_refused_ends_the_other(
    start_router: Any, pools: Any, chat: Any, side: str, status: int
) -> None:
    p, d = await pools("pd")
    code = {500: "engine_failure", 503: "unavailable"}[status]
    {"p": p, "d": d}[side].refuse_with = ErrorInfo(status=status, code=code, message="not here")
    router = await start_router(p, d, cluster={"first_token_deadline_s": 5.0})
    async with asyncio.timeout(5):
        answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR))
    assert answer.status_code >= 500
    await router.wait_idle(p, d)
    outcome = "failed" if side == "p" else "refused"
    assert f'handoffs_total{{outcome="{outcome}"}} 0.0' not in (await router.http.get("/metrics")).text
    if side == "p":
        assert [request.request_id for request in d.submits] == d.cancelled
    else:
        assert p.submits == []


async def test_without_a_live_prefill_replica_nothing_reaches_the_other(
    start_router: Any, pools: Any, chat: Any
) -> None:
    p, d = await pools("pd")
    router = await start_router(p, d)
    await p.close()
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 1)
    async with asyncio.timeout(1):
        answer = await router.http.post("/v1/chat/completions", json=chat(**PAIR))
    assert answer.status_code == 503
    assert "prefill" in answer.json()["error"]["message"]
    assert d.submits == []


async def test_an_answer_without_a_hand_off_is_counted(start_router: Any, pools: Any, chat: Any) -> None:
    """Perhaps the decode replica computed the prompt again: no text would show it."""
    p, d = await pools("pd")
    d.report_handoff = False
    router = await start_router(p, d)
    assert (await router.http.post("/v1/chat/completions", json=chat(**PAIR))).status_code == 200
    assert 'handoffs_total{outcome="unreported"} 1.0' in (await router.http.get("/metrics")).text


async def test_a_stop_string_does_not_hide_the_hand_off(start_router: Any, pools: Any, chat: Any) -> None:
    """The router ends such an answer before the decode replica does: the report must have come before (SIL-6)."""
    p, d = await pools("pd")
    d.say("one two three four five six seven")
    p.reply = d.reply
    router = await start_router(p, d)
    answer = await router.http.post("/v1/chat/completions", json=chat(stop=" four", max_tokens=200, **PAIR))
    assert answer.json()["choices"][0]["message"]["content"] == "one two three"
    decision = (await router.http.get("/decisions?limit=1")).json()["decisions"][0]
    assert decision["outcome"]["handoff"]["num_bytes"] == 1000
    metrics = (await router.http.get("/metrics")).text
    assert 'handoffs_total{outcome="completed"} 1.0' in metrics
    assert 'handoffs_total{outcome="unreported"} 0.0' in metrics
