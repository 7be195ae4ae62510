"""The reader of a bulk connection, without a socket: any cut of the stream gives the same puts, and nothing else."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvtransfer.protocol import Span, TransferError
from kvtransfer.put_stream import (
    ACCEPTED,
    END_HEADER,
    ENDED,
    HEADER_BYTES,
    Counters,
    PutReader,
    advance,
    preamble,
    put_header,
)
from kvtransfer.slot_spans import SlotTable

TOKEN = b"t" * 32
SLOTS = [bytes([number] * 16) for number in range(3)]
SPANS = [[Span(0, 50), Span(90, 30)], [Span(60, 30), Span(50, 10)], []]  # slot 2 is never opened
SIZES = [80, 40, 100]


class Feed:
    """A reader, and the bytes that it is given as the kernel would."""

    def __init__(self) -> None:
        self.memory = memoryview(bytearray(128))
        self.table = SlotTable(self.memory)
        self.landed: list[tuple[bytes, int, int, bytes]] = []
        self.counters = Counters()
        self.reader = PutReader(self.table, lambda *put: self.landed.append(put), TOKEN.__eq__, self.counters)
        for slot, spans in zip(SLOTS[:2], SPANS, strict=False):
            self.table.open(slot, spans)

    def give(self, data: bytes) -> bytes:
        """One read of at most these bytes. Returns the rest."""
        rest, count = memoryview(data), 0
        for buffer in self.reader.buffers():
            part = rest[: len(buffer)]
            buffer[: len(part)] = part
            count += len(part)
            rest = rest[len(part) :]
        self.answers += self.reader.filled(count)
        return bytes(rest)

    answers = b""

    def give_all(self, data: bytes, cuts: list[int]) -> None:
        edges = sorted({cut % (len(data) + 1) for cut in cuts} | {0, len(data)})
        for start, end in itertools.pairwise(edges):
            rest = data[start:end]
            while rest:
                rest = self.give(rest)


put_values = st.tuples(st.integers(0, 2), st.integers(0, 100), st.binary(max_size=100), st.binary(max_size=256))


@given(st.lists(put_values, max_size=6), st.lists(st.integers(0, 1 << 30), max_size=12))
def test_any_cut_of_the_stream(puts: list[tuple[int, int, bytes, bytes]], cuts: list[int]) -> None:
    feed = Feed()
    expected = bytearray(128)
    landed = []
    stream = preamble(TOKEN)
    for number, offset, data, note in puts:
        stream += put_header(SLOTS[number], offset, len(data), note) + data
        if number < 2 and offset + len(data) <= SIZES[number]:
            places = [span.offset + i for span in SPANS[number] for i in range(span.length)]
            for place, value in zip(places[offset:], data, strict=False):
                expected[place] = value
            landed.append((SLOTS[number], offset, len(data), note))
    feed.give_all(stream + END_HEADER, cuts)
    assert feed.landed == landed
    assert feed.memory == expected
    assert feed.answers == ACCEPTED + ENDED
    assert feed.counters.landed_puts == len(landed)
    assert feed.table.refused_puts == len(puts) - len(landed)
    assert not any(feed.table.writers(slot) for slot in SLOTS)


def test_a_put_that_is_cut_writes_no_more() -> None:
    feed = Feed()
    feed.give_all(preamble(TOKEN) + put_header(SLOTS[0], 0, 60, b"n") + b"a" * 20, [])
    assert not feed.reader.between_puts
    feed.reader.cut()
    feed.give_all(b"b" * 40 + put_header(SLOTS[1], 0, 1, b"") + b"c", [])
    assert bytes(feed.memory[:50]) == b"a" * 20 + bytes(30)
    assert feed.landed == [(SLOTS[1], 0, 1, b"")]
    assert feed.counters.cut_puts == 1
    assert feed.reader.between_puts


@pytest.mark.parametrize("first", [preamble(b"x" * 32), b"GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n      "])
def test_a_stranger_is_refused_after_the_preamble(first: bytes) -> None:
    feed = Feed()
    with pytest.raises(TransferError):
        feed.give_all(first[:36], [])
    assert feed.counters.refused_connections == 1
    assert feed.answers == b""


@given(st.binary(min_size=HEADER_BYTES, max_size=HEADER_BYTES))
def test_noise_for_a_header(noise: bytes) -> None:
    feed = Feed()
    feed.give_all(preamble(TOKEN), [])
    with pytest.raises(TransferError):
        feed.give_all(noise, [])
    assert not any(feed.memory)


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 80))
def test_advance(sizes: list[int], count: int) -> None:
    data = bytes(range(sum(sizes)))
    views, start = [], 0
    for size in sizes:
        views.append(memoryview(data)[start : start + size])
        start += size
    count = min(count, len(data))
    first, rest = advance(views, 0, count)
    left = ([rest] if rest is not None else []) + views[first + (rest is not None) :]
    assert b"".join(left) == data[count:]
