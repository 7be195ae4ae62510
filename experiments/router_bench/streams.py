"""Two clients of the same load: over HTTP through the router, and straight to the replica over ZMQ.

Each of `streams` slots sends `rounds` requests, one after the other. Times are `time.monotonic()` in seconds.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

import aiohttp
import zmq
import zmq.asyncio

from contracts import wire
from contracts.request import Request, SamplingParams, Slo

DEADLINE_S = 300.0
LENIENT = Slo(ttft_s=60.0, tpot_s=10.0)
HEARTBEAT_S = 0.5


@dataclass(frozen=True, slots=True)
class Load:
    """`stagger_s` is the time between the starts of two slots, so that they do not all send at once."""

    streams: int
    rounds: int
    max_tokens: int
    stagger_s: float


@dataclass(slots=True)
class Seen:
    """One request as its client saw it: when it was sent, and each event's time with the text (or tokens) so far."""

    name: str
    sent_s: float
    events: list[tuple[float, str]] = field(default_factory=list)


async def http_load(load: Load, url: str, model: str) -> list[Seen]:
    """Streamed completions through the router. Raises `SystemExit` on any answer but 200."""
    timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
    async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:

        async def one(name: str) -> Seen:
            body = {
                "model": model,
                "prompt": f"{name}: what is the capital of France, and how many people live there?",
                "max_tokens": load.max_tokens,
                "stream": True,
                "ignore_eos": True,
            }
            seen = Seen(name, time.monotonic())
            async with session.post(f"{url}/v1/completions", json=body, headers={"X-Request-Id": name}) as answer:
                if answer.status != 200:
                    raise SystemExit(f"the router answered {answer.status}: {await answer.text()}")
                await _read(answer, seen)
            return seen

        return await _slots(load, one)


async def _read(answer: aiohttp.ClientResponse, seen: Seen) -> None:
    text = ""
    async for line in answer.content:
        now = time.monotonic()
        if not line.startswith(b"data: {"):
            continue
        event = json.loads(line[6:])
        if "error" in event:
            raise SystemExit(f"the stream ended with {event['error']}")
        piece = event["choices"][0].get("text", "") if event["choices"] else ""
        if piece:
            text += piece
            seen.events.append((now, text))


async def direct_load(load: Load, endpoint: str) -> list[Seen]:
    """The same requests straight to the replica, tokens as they come. For a replica that needs no lease."""
    waiting: dict[str, tuple[Seen, asyncio.Future[None]]] = {}
    with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint)
        await socket.send(wire.encode(wire.Hello(router_id="bench")))
        tasks = [asyncio.create_task(_listen(socket, waiting)), asyncio.create_task(_beat(socket))]
        index = itertools.count(1)

        async def one(name: str) -> Seen:
            number = next(index)
            request = Request(
                request_id=name,
                prompt_token_ids=tuple((number * 31 + i) % 20_000 + 10 for i in range(20)),
                sampling=SamplingParams(max_tokens=load.max_tokens, ignore_eos=True),
                slo=LENIENT,
                submit_index=number,
            )
            seen, ended = Seen(name, time.monotonic()), asyncio.get_running_loop().create_future()
            waiting[name] = (seen, ended)
            await socket.send(wire.encode(wire.Submit(requests=(request,))))
            await asyncio.wait_for(ended, DEADLINE_S)
            return seen

        try:
            return await _slots(load, one)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _listen(socket: zmq.asyncio.Socket, waiting: dict[str, tuple[Seen, asyncio.Future[None]]]) -> None:
    while True:
        message = wire.decode_replica_message(await socket.recv())
        now = time.monotonic()
        if isinstance(message, wire.Refused):
            waiting[message.request_id][1].set_exception(SystemExit(f"refused: {message.error.message}"))
        for output in message.outputs if isinstance(message, wire.Outputs) else ():
            seen, ended = waiting[output.request_id]
            if output.token_ids:
                seen.events.append((now, ""))
            if output.finish is not None and not ended.done():
                ended.set_result(None)


async def _beat(socket: zmq.asyncio.Socket) -> None:
    for nonce in itertools.count(1):
        await socket.send(wire.encode(wire.Ping(nonce=nonce)))
        await asyncio.sleep(HEARTBEAT_S)


async def _slots(load: Load, one: Callable[[str], Awaitable[Seen]]) -> list[Seen]:
    async def slot(number: int) -> list[Seen]:
        await asyncio.sleep(number * load.stagger_s)
        return [await one(f"bench-{number:04d}-{turn:04d}") for turn in range(load.rounds)]

    return list(itertools.chain(*await asyncio.gather(*(slot(number) for number in range(load.streams)))))
