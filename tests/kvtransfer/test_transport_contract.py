"""One contract for every transport: what a put does, what closed slots swallow, and that nothing stays behind."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from kvtransfer.protocol import MAX_NOTE_BYTES, Span, TransferError, Transport

SLOT = bytes(range(16))
OTHER = bytes(range(16, 32))
MakeLink = Callable[[Transport, int], Awaitable[Any]]


async def test_a_put_lands_and_brings_its_note(link: Any) -> None:
    spans = [Span(4096, 1000), Span(100, 500)]
    link.receiver.open_slot(SLOT, spans)
    sender = await link.connect()
    note = os.urandom(MAX_NOTE_BYTES)
    await sender.put(SLOT, 0, [link.source[:700], link.source[5000:5800]], note)
    await link.until_landed(1)
    assert link.landed == [(SLOT, 0, 1500, note)]
    assert link.bytes_of(spans) == bytes(link.source[:700]) + bytes(link.source[5000:5800])
    assert not any(link.memory[600:4096])
    assert not any(link.memory[5096:])


async def test_offsets_over_the_borders_of_spans(link: Any) -> None:
    spans = [Span(1000 * i, 10 * (i % 7 + 1)) for i in range(900)]
    size = sum(span.length for span in spans)
    link.receiver.open_slot(SLOT, spans)
    sender = await link.connect()
    borders = [0, 3, 10, 11, 500, 7777, size - 1, size]
    for start, end in itertools.pairwise(borders):
        await sender.put(SLOT, start, [link.source[start:end]], start.to_bytes(8, "big"))
    await link.until_landed(len(borders) - 1)
    assert link.bytes_of(spans) == bytes(link.source[:size])
    assert sorted(length for _, _, length, _ in link.landed) == sorted(b - a for a, b in itertools.pairwise(borders))


async def test_many_puts_at_once(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1 << 19)])
    link.receiver.open_slot(OTHER, [Span(1 << 19, 1 << 19)])
    sender = await link.connect()
    size = 1 << 13
    puts = [(slot, start) for slot in (SLOT, OTHER) for start in range(0, 1 << 19, size)]
    await asyncio.gather(
        *(
            sender.put(slot, start, [link.source[start : start + size]], start.to_bytes(4, "big"))
            for slot, start in puts
        )
    )
    await link.until_landed(len(puts))
    assert sorted(link.landed) == sorted((slot, start, size, start.to_bytes(4, "big")) for slot, start in puts)
    assert link.memory[: 1 << 19] == link.memory[1 << 19 :] == link.source[: 1 << 19]


@pytest.mark.parametrize("length", [0, 1, 8191, 8192, 8193, 65535, 65536, 65537, (1 << 20) - 1, 1 << 20])
async def test_any_size(link: Any, length: int) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1 << 20)])
    sender = await link.connect()
    await sender.put(SLOT, (1 << 20) - length, [link.source[:length]], b"n")
    await link.until_landed(1)
    assert link.landed == [(SLOT, (1 << 20) - length, length, b"n")]
    assert link.memory[(1 << 20) - length :] == link.source[:length]


async def test_no_source_and_empty_views(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 0), Span(10, 5)])
    sender = await link.connect()
    await sender.put(SLOT, 5, [])
    await sender.put(SLOT, 1, [link.source[:0], link.source[:4], link.source[:0]], b"")
    await link.until_landed(2)
    assert sorted(link.landed) == [(SLOT, 1, 4, b""), (SLOT, 5, 0, b"")]
    assert link.memory[11:15] == link.source[:4]


async def test_what_belongs_nowhere_is_swallowed(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    sender = await link.connect()
    await sender.put(OTHER, 0, [link.source[:1000]], b"unknown")
    await sender.put(SLOT, 1, [link.source[:1000]], b"overrun")
    await sender.put(SLOT, 1 << 40, [link.source[:1]], b"far away")
    await link.stays_at(0)
    assert not any(link.memory)
    await sender.put(SLOT, 0, [link.source[:1000]], b"good")
    await link.until_landed(1)
    assert link.landed == [(SLOT, 0, 1000, b"good")]


async def test_wrong_arguments(link: Any) -> None:
    for spans in ([Span(1 << 20, 1)], [Span(-1, 5)], [Span(0, (1 << 20) + 1)]):
        with pytest.raises(ValueError):
            link.receiver.open_slot(SLOT, spans)
    with pytest.raises(ValueError):
        link.receiver.open_slot(b"short", [Span(0, 1)])
    sender = await link.connect()
    with pytest.raises(ValueError):
        await sender.put(SLOT, 0, [link.source[:1]], bytes(MAX_NOTE_BYTES + 1))
    with pytest.raises(ValueError):
        await sender.put(b"short", 0, [link.source[:1]])


@pytest.mark.parametrize("sender_stopped", [True, False])
async def test_a_closed_slot_is_not_written_to(link: Any, sender_stopped: bool) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    sender = await link.connect()
    await sender.put(SLOT, 0, [link.source[:1000]])
    await link.until_landed(1)
    await link.receiver.close_slot(SLOT, sender_stopped=True)
    await link.receiver.close_slot(SLOT, sender_stopped=sender_stopped)
    await link.receiver.close_slot(OTHER, sender_stopped=sender_stopped)
    link.memory[:1000] = bytes(1000)
    await sender.put(SLOT, 0, [link.source[:1000]])
    await link.stays_at(1)
    assert not any(link.memory)


async def test_closing_a_slot_under_fire(make_link: MakeLink, transport: Transport) -> None:
    size = 16 << 20
    link = await make_link(transport, size)
    link.source = memoryview(bytearray(b"\xcd") * size)
    link.receiver.open_slot(SLOT, [Span(0, size)])
    sender = await link.connect()
    stop = False

    async def fire() -> None:
        while not stop:
            try:
                await sender.put(SLOT, 0, [link.source])
            except TransferError:  # a one-sided transport cuts the sender off
                return
            await asyncio.sleep(0)

    firing = asyncio.create_task(fire())
    await link.until_landed(1)
    await asyncio.sleep(0.002)
    await link.receiver.close_slot(SLOT, sender_stopped=False)
    count = len(link.landed)
    link.memory[:] = bytes(size)
    await asyncio.sleep(0.1)
    stop = True
    await asyncio.wait_for(firing, 10.0)
    assert not any(link.memory)
    assert len(link.landed) == count
    again = await link.connect()
    link.receiver.open_slot(OTHER, [Span(0, 100)])
    await again.put(OTHER, 0, [link.source[:100]])
    await link.until_landed(count + 1)
    assert link.memory[:100] == link.source[:100]


async def intrude(link: Any) -> None:
    """Some transports refuse at the connection, some at the first put."""
    sender = await link.connect(token=bytes(32))
    for _ in range(10):
        await sender.put(SLOT, 0, [link.source[:1000]])
        await asyncio.sleep(0.02)


async def test_a_wrong_token_gets_nowhere(link: Any) -> None:
    link.receiver.open_slot(SLOT, [Span(0, 1000)])
    with pytest.raises(TransferError):
        await intrude(link)
    await link.stays_at(0)
    assert not any(link.memory)
    good = await link.connect()
    await good.put(SLOT, 0, [link.source[:1000]])
    await link.until_landed(1)
