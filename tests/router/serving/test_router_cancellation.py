"""A client that leaves is noticed in every state, streaming or not, and nothing of its request is left (CAN)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest


class RawClient:
    """A socket that sends one request and can vanish at any time."""

    def __init__(self, url: str) -> None:
        self.port = int(url.rsplit(":", 1)[1])

    async def send(self, path: str, body: dict[str, Any]) -> asyncio.StreamReader:
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(raw)}\r\n\r\n"
        self.writer.write(head.encode() + raw)
        await self.writer.drain()
        return self.reader

    async def vanish(self) -> None:
        self.writer.close()
        await self.writer.wait_closed()


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("fields", [{}, {"n": 3}])
async def test_can_1_2_twenty_clients_leave_while_their_answers_are_generated(
    router: Any, replica: Any, chat: Any, stream: bool, fields: dict[str, Any]
) -> None:
    replica.pace_s = 0.01
    clients = [RawClient(router.url) for _ in range(20)]
    for client in clients:
        await client.send("/v1/chat/completions", chat(stream=stream, ignore_eos=True, **fields))
    num_sequences = 20 * fields.get("n", 1)
    await until(lambda: len(replica.alive) == num_sequences)
    for client in clients:
        await client.vanish()
    await router.wait_idle(replica)
    assert sorted(replica.cancelled) == sorted(request.request_id for request in replica.submits)
    assert (await router.http.post("/v1/chat/completions", json=chat())).status_code == 200


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("by", ["their id", "our id"])
async def test_can_7_a_request_is_cancelled_by_its_id(
    router: Any, gated: Any, chat: Any, stream: bool, by: str
) -> None:
    sending = asyncio.create_task(
        router.http.post("/v1/chat/completions", json=chat(stream=stream, n=2), headers={"x-request-id": "t1"})
    )
    await until(lambda: gated.alive)
    wanted = "t1" if by == "their id" else "chatcmpl-t1"
    assert (await router.http.post("/v1/requests/nope/cancel")).status_code == 404
    assert (await router.http.delete(f"/v1/requests/{wanted}")).json()["status"] == "cancelled"
    answer = await asyncio.wait_for(sending, 5)
    assert answer.status_code == 499
    assert answer.json()["error"]["code"] == "cancelled"
    again = await router.http.post(f"/v1/requests/{wanted}/cancel")
    assert (again.status_code, again.json()["error"]["code"]) == (404, "request_not_found")
    await router.wait_idle(gated)
    assert sorted(gated.cancelled) == ["chatcmpl-t1#0", "chatcmpl-t1#1"]


async def test_can_7_a_stream_is_cancelled_by_its_id(router: Any, replica: Any, chat: Any) -> None:
    replica.pace_s = 0.01
    body = chat(stream=True, ignore_eos=True)
    async with router.http.stream("POST", "/v1/chat/completions", json=body, headers={"x-request-id": "t1"}) as answer:
        lines = answer.aiter_lines()
        await anext(lines)
        assert (await router.http.post("/v1/requests/t1/cancel")).status_code == 200
        rest = [line async for line in lines if line.startswith("data: ")]
    assert json.loads(rest[-2].removeprefix("data: "))["error"]["code"] == "cancelled"
    assert rest[-1] == "data: [DONE]"
    await router.wait_idle(replica)
    assert replica.cancelled == ["chatcmpl-t1"]


@pytest.mark.parametrize("stream", [True, False])
async def test_can_4_6_a_client_leaves_before_the_first_token(router: Any, gated: Any, chat: Any, stream: bool) -> None:
    """In a long prefill nothing is written to the client: only its socket can tell."""
    client = RawClient(router.url)
    await client.send("/v1/chat/completions", chat(stream=stream))
    await until(lambda: gated.alive)
    await client.vanish()
    await router.wait_idle(gated)
    assert gated.cancelled == [gated.submits[0].request_id]


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_leaves_while_its_request_is_pending(
    start_router: Any, replica: Any, chat: Any, stream: bool
) -> None:
    """The replica has no room, so the request waits in the router."""
    replica.full = True
    router = await start_router(replica)
    client = RawClient(router.url)
    await client.send("/v1/chat/completions", chat(stream=stream))
    await until(lambda: router.fleet.core.pending_count == 1)
    await client.vanish()
    await until(lambda: router.fleet.core.pending_count == 0)
    assert router.fleet.num_flights == 0
    assert replica.submits == []


async def test_a_client_leaves_in_the_middle_of_its_body(router: Any, replica: Any) -> None:
    client = RawClient(router.url)
    client.reader, client.writer = await asyncio.open_connection("127.0.0.1", client.port)
    client.writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{")
    await client.writer.drain()
    await client.vanish()
    await router.wait_idle(replica)
    assert replica.submits == []


async def test_one_of_several_prompts_is_enough_to_cancel_all(router: Any, gated: Any) -> None:
    client = RawClient(router.url)
    await client.send("/v1/completions", {"model": "tiny", "prompt": ["a", "b", "c"]})
    await until(lambda: len(gated.alive) == 3)
    await client.vanish()
    await router.wait_idle(gated)
    assert len(gated.cancelled) == 3


async def test_a_stop_string_cancels_its_own_sequence_only(router: Any, replica: Any, chat: Any) -> None:
    def reply(request: Any) -> list[int]:
        words = "stop here" if request.request_id.endswith("#0") else "go on and on"
        ids: list[int] = replica.tokenizer.encode(words).ids
        return ids

    replica.reply = reply
    replica.pace_s = 0.01
    answer = await router.http.post("/v1/chat/completions", json=chat(n=2, stop=" here"))
    assert [choice["message"]["content"] for choice in answer.json()["choices"]] == ["stop", "go on and on"]
    await router.wait_idle(replica)
    assert [name.rsplit("#", 1)[1] for name in replica.cancelled] in (["0"], [])


async def test_the_request_deadline_ends_a_request_in_any_state(start_router: Any, gated: Any, chat: Any) -> None:
    router = await start_router(gated, request_deadline_s=0.3)
    for stream in (True, False):
        answer = await router.http.post("/v1/chat/completions", json=chat(stream=stream))
        assert answer.status_code == 504
        assert answer.json()["error"]["code"] == "deadline_exceeded"
    await router.wait_idle(gated)
    assert len(gated.cancelled) == 2


async def test_a_client_that_does_not_read_is_given_up_at_the_deadline(
    start_router: Any, replica: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("router.exchange.LAST_WRITE_S", 0.2)
    router = await start_router(replica, request_deadline_s=0.5)
    replica.say("x" * 400)
    client = RawClient(router.url)
    body = chat(stream=True, ignore_eos=True, logprobs=True, top_logprobs=20, n=16)
    await client.send("/v1/chat/completions", body)
    await until(lambda: replica.submits)
    await router.wait_idle(replica)
    requests = router.app.state.served.metrics.requests
    given_up = [requests.labels("chat", outcome) for outcome in ("cancelled", "deadline")]
    await until(lambda: sum(counter._value.get() for counter in given_up) == 1)
    await client.vanish()


async def test_the_same_request_id_twice_at_the_same_time(router: Any, gated: Any, chat: Any) -> None:
    headers = {"x-request-id": "t1"}
    asked = [router.http.post("/v1/chat/completions", json=chat(), headers=headers) for _ in range(3)]
    answers = asyncio.gather(*asked)
    await until(lambda: len(gated.alive) == 3)
    gated.gate.set()
    assert [answer.status_code for answer in await answers] == [200] * 3
    assert len({request.request_id for request in gated.submits}) == 3


async def test_one_refused_prompt_refuses_and_cancels_the_whole_request(start_router: Any, replica: Any) -> None:
    """The pending queue holds one; the second of three prompts is over the bound."""
    replica.full = True
    router = await start_router(replica, cluster={"max_pending": 1})
    answer = await router.http.post("/v1/completions", json={"model": "tiny", "prompt": ["a", "b", "c"]})
    assert answer.status_code == 429
    assert answer.json()["error"]["type"] == "rate_limit_error"
    assert int(answer.headers["retry-after"]) >= 1
    assert router.fleet.core.pending_count == 0
    assert router.fleet.num_flights == 0
    assert replica.submits == []


async def test_ids_that_look_like_those_of_other_requests_stay_apart(router: Any, gated: Any) -> None:
    """Prompt 0 of request `a` would be called like request `a-p0`, and its stand-in like request `a-p0.1`."""
    asked = [
        router.http.post("/v1/completions", json={"model": "tiny", "prompt": prompt}, headers={"x-request-id": name})
        for name, prompt in (("a-p0", "x"), ("a-p0.1", "y"), ("a-p0.2", "z"), ("a", ["v", "w"]))
    ]
    answers = asyncio.gather(*asked)
    await until(lambda: len(gated.alive) == 5)
    gated.gate.set()
    assert [answer.status_code for answer in await answers] == [200] * 4
    assert len({request.request_id for request in gated.submits}) == 5
