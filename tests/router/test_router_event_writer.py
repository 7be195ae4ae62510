"""Events written where tokens arrive: the bytes of the general path, in order, however slowly the client reads."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason, SamplingParams
from router.answers import Answers
from router.call import Call
from router.eager import begin
from router.event_writer import EventWriter
from router.generation import Endpoint, Generation, Prompt
from router.token_table import TokenTable

TEXT = 'héllo "wörld" \\ \n 🚀 <tag>\u2028 end'


def call_of(table: TokenTable, endpoint: Endpoint = Endpoint.CHAT, **fields: Any) -> Call:
    generation = Generation(
        endpoint=endpoint,
        id="chatcmpl-1",
        created=7,
        model='odd "name" \0',
        prompts=(Prompt((5,)),),
        n=1,
        sampling=SamplingParams(max_tokens=100),
        max_tokens=(100,),
        stream=True,
        **fields,
    )
    return Call(generation, table)


def outputs_of(table: TokenTable) -> list[SequenceOutput]:
    ids = table.tokenizer.encode(TEXT).ids
    last = len(ids) - 1
    return [
        SequenceOutput(request_id="s", token_ids=(token,), finish=FinishReason.LENGTH if i == last else None)
        for i, token in enumerate(ids)
    ]


@pytest.mark.parametrize("endpoint", list(Endpoint))
@pytest.mark.parametrize("fields", [{}, {"include_usage": True}, {"stops": ("zzz",)}, {"echo": True}])
def test_a_frame_gives_the_bytes_of_the_general_path(
    tiny_table: TokenTable, endpoint: Endpoint, fields: dict[str, Any]
) -> None:
    framed, general = (call_of(tiny_table, endpoint, **fields) for _ in range(2))
    fast, slow = Answers(framed, tiny_table), Answers(general, tiny_table)
    text = ""
    for output in outputs_of(tiny_table):
        framed.deliver(0, output)
        general.deliver(0, output)
        event = fast.event(0)
        assert event == b"".join(slow._events_of(0))
        for line in event.decode().split("\n\n")[:-1]:
            choice = msgspec.json.decode(line.removeprefix("data: "))["choices"][0]
            text += choice["delta"].get("content", "") if endpoint is Endpoint.CHAT else choice["text"]
    assert text.endswith(TEXT)
    assert fast.all_closed


class Client:
    """The server's side of one client: `send` waits while `reads` is clear."""

    def __init__(self) -> None:
        self.reads = asyncio.Event()
        self.reads.set()
        self.failure: Exception | None = None
        self.bodies: list[bytes] = []

    async def send(self, message: Any) -> None:
        if not self.reads.is_set():
            await self.reads.wait()
        if self.failure is not None:
            raise self.failure
        self.bodies.append(message["body"])


async def stream(call: Call, answers: Answers, client: Client) -> None:
    writer = EventWriter(call, answers, client.send)
    try:
        while not answers.all_closed:
            with writer.at_arrival():
                changed = await call.wait()
            await writer.write(answers.events(changed))
    finally:
        writer.close()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_every_slowness_gives_the_same_stream(tiny_table: TokenTable) -> None:
    outputs = outputs_of(tiny_table)
    whole = []
    for pauses in (set(), {3}, {1, 2, 7}, set(range(0, len(outputs), 2))):
        call, client = call_of(tiny_table), Client()
        task = asyncio.create_task(stream(call, Answers(call, tiny_table), client))
        await settle()
        for i, output in enumerate(outputs):
            (client.reads.clear if i in pauses else client.reads.set)()
            if i % 3 == 0:
                await settle()
            call.deliver(0, output)
        client.reads.set()
        await asyncio.wait_for(task, 5)
        pieces = [line for line in b"".join(client.bodies).split(b"\n\n") if line]
        deltas = [msgspec.json.decode(piece.removeprefix(b"data: "))["choices"][0]["delta"] for piece in pieces]
        whole.append("".join(delta.get("content", "") for delta in deltas))
    assert whole == [TEXT] * 4


async def test_a_client_that_reads_is_written_to_without_its_task(tiny_table: TokenTable) -> None:
    call, client = call_of(tiny_table), Client()
    task = asyncio.create_task(stream(call, Answers(call, tiny_table), client))
    await settle()
    for output in outputs_of(tiny_table)[:4]:
        call.deliver(0, output)
    assert len(client.bodies) >= 2  # no task ran since the first delivery
    task.cancel()
    await asyncio.wait([task])
    assert call.on_change is None


async def test_a_broken_write_ends_its_stream_alone(tiny_table: TokenTable) -> None:
    call, client = call_of(tiny_table), Client()
    client.failure = OSError("gone")
    task = asyncio.create_task(stream(call, Answers(call, tiny_table), client))
    await settle()
    for output in outputs_of(tiny_table):
        call.deliver(0, output)
    with pytest.raises(OSError, match="gone"):
        await asyncio.wait_for(task, 5)


async def test_a_suspended_write_ends_with_its_stream(tiny_table: TokenTable) -> None:
    call, client = call_of(tiny_table), Client()
    client.reads.clear()
    task = asyncio.create_task(stream(call, Answers(call, tiny_table), client))
    await settle()
    call.deliver(0, outputs_of(tiny_table)[0])
    await settle()
    assert not task.done()
    task.cancel()
    await asyncio.wait([task])
    client.reads.set()
    await settle()
    assert client.bodies == []


async def test_an_awaitable_begun_here_is_ended_there() -> None:
    steps: list[str] = []
    go = asyncio.Event()

    async def work() -> None:
        steps.append("begun")
        await go.wait()
        await asyncio.sleep(0)
        steps.append("ended")

    rest = begin(work())
    assert rest is not None
    assert steps == ["begun"]
    go.set()
    await asyncio.wait_for(asyncio.ensure_future(rest), 5)
    assert steps == ["begun", "ended"]
    assert begin(asyncio.sleep(0)) is not None
