"""Replicas that die, fail or break the protocol in the middle: the text goes on, or ends with a named error."""

from __future__ import annotations

import asyncio
import random
from typing import Any, Literal

import pytest

from contracts import wire
from contracts.errors import ErrorInfo
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason

PAIR = {"phaseserve": {"layout": "disaggregated"}}
LOST_KV = ErrorInfo(status=503, code="kv_handoff_failed", message="the link was cut")
WORDS = "Hello world, the quick brown fox jumps over the lazy dog."


async def until(condition: Any) -> None:
    async with asyncio.timeout(5):
        while not condition():  # noqa: ASYNC110  (nothing sets an event for it)
            await asyncio.sleep(0.005)


async def read(
    router: Any,
    body: dict[str, Any],
    after_first: Any,
    path: str = "chat/completions",
    status: tuple[int, ...] = (200,),
) -> bytes:
    """The whole stream; `after_first` is awaited once its first bytes are there."""
    received = b""
    async with router.http.stream("POST", f"/v1/{path}", json={**body, "stream": True}) as answer:
        assert answer.status_code in status
        async for part in answer.aiter_bytes():
            if not received:
                await after_first()
            received += part
    return received


@pytest.mark.parametrize("fields", [{}, {"logprobs": True, "top_logprobs": 1}, {"n": 2}, {"stop": ["lazy"]}])
async def test_a_stream_survives_its_replica(
    start_router: Any, two_replicas: Any, chat: Any, stream_ok: Any, fields: dict[str, Any]
) -> None:
    for each in two_replicas:
        each.say(WORDS)
        each.pace_s = 0.01
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)

    async def kill() -> None:
        first = next(each for each in two_replicas if each.submits)
        await until(lambda: any(track.num_tokens > 3 for flight in flights(router) for track in flight.tracks))
        await first.close()

    body = await read(router, chat(max_tokens=300, **fields), kill)
    texts = stream_ok(body, choices=fields.get("n", 1))
    assert set(texts.values()) == {WORDS.partition("lazy")[0] if "stop" in fields else WORDS}
    second = next(each for each in two_replicas if each.submits and each.submits[0].output_token_ids)
    assert all(request.request_id.endswith("~2") for request in second.submits)
    assert b"phaseserve_continuations_total 1.0" in router.app.state.served.metrics.text()
    await router.wait_idle(second)


def flights(router: Any) -> list[Any]:
    return list(router.fleet._flights)


async def test_the_decode_replica_dies(start_router: Any, pools: Any, chat: Any, stream_ok: Any) -> None:
    p, d0, d1 = await pools("pdd")
    for each in (p, d0, d1):
        each.say(WORDS)
    d0.pace_s = d1.pace_s = 0.01
    router = await start_router(p, d0, d1)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 3)

    async def kill() -> None:
        await next(each for each in (d0, d1) if each.submits).close()

    body = await read(router, chat(max_tokens=300, **PAIR), kill)
    assert stream_ok(body) == {0: WORDS}
    survivor = next(each for each in (d0, d1) if each.submits and each.submits[-1].output_token_ids)
    legs = [request for request in p.submits if request.output_token_ids]
    assert [request.output_token_ids for request in legs] == [survivor.submits[-1].output_token_ids]
    await router.wait_idle(p, survivor)


@pytest.mark.parametrize("held", ["reserve", "prefill"])
async def test_the_prefill_replica_dies_before_the_first_token(
    start_router: Any, pools: Any, chat: Any, held: str
) -> None:
    p0, p1, d = await pools("ppd")
    router = await start_router(p0, p1, d)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 3)
    if held == "reserve":
        d.may_reserve.clear()
    else:
        p0.gate.clear()
        p1.gate.clear()
    asked = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat(**PAIR)))
    await until(lambda: d.submits and (held == "reserve" or p0.submits or p1.submits))
    planned = d.submits[0].leg.prefill_replica_id
    dying, other = (p0, p1) if planned == "p0" else (p1, p0)
    await dying.close()
    await until(lambda: d.submits[0].request_id in d.cancelled)
    d.may_reserve.set()
    other.gate.set()
    answer = await asked
    assert answer.json()["choices"][0]["message"]["content"] == "Hello world"
    await router.wait_idle(other, d)


async def test_a_prefill_replica_that_dies_later_does_not_matter(
    start_router: Any, pools: Any, chat: Any, stream_ok: Any
) -> None:
    p, d = await pools("pd")
    p.say(WORDS)
    d.say(WORDS)
    d.may_receive.clear()
    router = await start_router(p, d)

    async def kill() -> None:
        await p.close()
        await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 1)
        d.may_receive.set()

    assert stream_ok(await read(router, chat(max_tokens=300, **PAIR), kill)) == {0: WORDS}
    assert len(d.submits) == 1


@pytest.mark.parametrize("policy", ["recompute", "fail"])
async def test_a_hand_off_that_fails(start_router: Any, pools: Any, chat: Any, stream_ok: Any, policy: str) -> None:
    """Mostly the first token is with the client already, and is not said again; else the answer is the error."""
    p, d0, d1 = await pools("pdd")
    for each in (p, d0, d1):
        each.say(WORDS)
    d0.fail_receive = LOST_KV
    router = await start_router(p, d0, d1, cluster={"on_handoff_failure": policy})
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 3)
    codes, texts = set(), set()
    for _ in range(4):
        asked = chat(max_tokens=300, **PAIR)
        body = await read(router, asked, lambda: asyncio.sleep(0), status=(200, 503) if policy == "fail" else (200,))
        if b'"error"' in body:
            codes.add(b"kv_handoff_failed" in body)
            assert body.endswith(b"data: [DONE]\n\n") or body.startswith(b'{"error"')
        else:
            texts.add(stream_ok(body)[0])
    assert d0.submits
    assert texts <= {WORDS}
    assert codes == ({True} if policy == "fail" else set())
    await router.wait_idle(p, d0, d1)
    metrics = (await router.http.get("/metrics")).text
    assert 'phaseserve_handoffs_total{outcome="failed"} 0.0' not in metrics


async def test_the_decode_replica_dies_while_the_prompt_is_computed(start_router: Any, pools: Any, chat: Any) -> None:
    p, d = await pools("pd")
    p.gate.clear()
    router = await start_router(p, d)
    asked = asyncio.create_task(router.http.post("/v1/chat/completions", json=chat(n=2, **PAIR)))
    await until(lambda: len(p.alive) == 2)
    await d.close()
    legs = sorted(request.request_id for request in p.submits[:2])
    await until(lambda: sorted(p.cancelled) == legs)
    p.gate.set()
    answer = await asked  # whole on the replica that is left, and it says so
    assert {choice["message"]["content"] for choice in answer.json()["choices"]} == {"Hello world"}
    assert answer.headers["x-phaseserve-layout"] != "disaggregated"
    assert answer.headers["x-phaseserve-fallback"]
    await router.wait_idle(p)


@pytest.mark.parametrize("seed", [1, 2, 3])
async def test_every_request_ends_right_whatever_fails(
    start_router: Any, pools: Any, chat: Any, stream_ok: Any, seed: int
) -> None:
    """Refusals, failed prefills, lost KV and failed decodes by chance; some clients leave."""
    chance = random.Random(seed)
    busy = ErrorInfo(status=503, code="unavailable", message="full")
    replicas = await pools("ppddm")
    for each in replicas:
        each.say(WORDS)
        each.failure = LOST_KV
        each.refuses = lambda request: busy if chance.random() < 0.1 else None
        each.fails_at = lambda request: 5 if chance.random() < 0.05 else None
        each.may_receive = SometimesLate(chance)
    router = await start_router(*replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 5)

    async def ask(number: int) -> str:
        layout = chance.choice(["disaggregated", "auto", "colocated"])
        asked = chat(f"{number}", max_tokens=300, stream=True, phaseserve={"layout": layout}, n=chance.choice([1, 2]))
        try:
            async with asyncio.timeout(0.05 if chance.random() < 0.1 else 20):
                answer = await router.http.post("/v1/chat/completions", json=asked)
        except TimeoutError:
            return "left"
        if answer.status_code == 200 and b'"error"' not in answer.content:
            assert set(stream_ok(answer.content, choices=asked["n"]).values()) == {WORDS}
            return "right"
        assert b'"code":"unavailable"' in answer.content or b'"code":"kv_handoff_failed"' in answer.content
        return "named"

    ends = await asyncio.gather(*(ask(number) for number in range(60)))
    assert ends.count("right") > 30
    await router.wait_idle(*replicas)
    assert router.fleet._flights._by_sequence == {}
    assert b"phaseserve_malformed_messages_total 0.0" in router.app.state.served.metrics.text()


class SometimesLate(asyncio.Event):
    """Every now and then the KV takes its time."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__()
        self._chance = chance

    async def wait(self) -> Literal[True]:
        await asyncio.sleep(0.1 if self._chance.random() < 0.2 else 0.0)
        return True


async def test_a_replica_that_repeats_itself_is_not_believed(
    start_router: Any, two_replicas: Any, chat: Any, stream_ok: Any
) -> None:
    for each in two_replicas:
        each.say(WORDS)
        each.pace_s = 0.02
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)

    async def repeat() -> None:
        first = next(each for each in two_replicas if each.submits)
        again = SequenceOutput(request_id=first.submits[0].request_id, token_ids=(9,), first_index=0)
        await first.tell(wire.Outputs(outputs=(again,)))
        await until(lambda: first.submits[0].request_id in first.cancelled)

    body = await read(router, chat(max_tokens=300), repeat)
    assert stream_ok(body) == {0: WORDS}
    assert b"phaseserve_malformed_messages_total 1.0" in router.app.state.served.metrics.text()


async def test_late_words_of_an_earlier_placement(
    start_router: Any, two_replicas: Any, chat: Any, stream_ok: Any
) -> None:
    for each in two_replicas:
        each.say(WORDS)
        each.pace_s = 0.01
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)

    async def fail_then_speak() -> None:
        first = next(each for each in two_replicas if each.submits)
        name = first.submits[0].request_id
        busy = ErrorInfo(status=503, code="unavailable", message="its memory is wanted elsewhere")
        first.alive.pop(name).cancel()
        await first.tell(
            wire.Outputs(outputs=(SequenceOutput(request_id=name, finish=FinishReason.ERROR, error=busy),))
        )
        for index in range(5):
            late = SequenceOutput(request_id=name, token_ids=(20 + index,), first_index=index)
            await first.tell(wire.Outputs(outputs=(late,)))

    body = await read(router, chat(max_tokens=300), fail_then_speak)
    assert stream_ok(body) == {0: WORDS}


async def test_sequences_that_ended_are_not_placed_again(
    start_router: Any, two_replicas: Any, chat: Any, stream_ok: Any
) -> None:
    encode = two_replicas[0].tokenizer.encode
    for each in two_replicas:
        each.pace_s = 0.01
        each.reply = lambda request: encode("Hi" if "#0" in request.request_id else WORDS).ids
    router = await start_router(*two_replicas)
    await until(lambda: len(router.fleet.core.snapshot(0).replicas) == 2)

    async def kill() -> None:
        await until(lambda: flights(router)[0].tracks[0].ended)
        await next(each for each in two_replicas if each.submits).close()

    body = await read(router, chat(max_tokens=300, n=2), kill)
    assert stream_ok(body, choices=2) == {0: "Hi", 1: WORDS}
    second = next(each for each in two_replicas if each.submits and "~2" in each.submits[0].request_id)
    assert [request.request_id.partition("#")[2] for request in second.submits] == ["1~2"]
