"""Layout maths against slow, obvious versions of itself."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.kv import KVLayout
from kvtransfer.spans import Pool, ReadyCells, Slot, by_layer, runs, slot_of

LAYOUT = KVLayout(num_layers=3, num_kv_heads=2, head_dim=4, block_size=4, dtype="float16")
SIZE = LAYOUT.block_bytes_per_layer
POOL = Pool(LAYOUT, 20)
tables = st.lists(st.integers(0, 19), unique=True, max_size=20)


@st.composite
def slots(draw: st.DrawFn) -> Slot:
    num_tokens = draw(st.integers(1, 60))
    skip = draw(st.integers(0, (num_tokens - 1) // 4)) * 4
    return slot_of(LAYOUT, num_blocks=-(-(num_tokens - skip) // 4), num_tokens=num_tokens, skip_tokens=skip)


@given(tables)
def test_spans_name_every_byte_of_the_blocks_in_order(blocks: list[int]) -> None:
    expected = [(layer * 20 + block) * SIZE + byte for layer in range(3) for block in blocks for byte in range(SIZE)]
    spans = POOL.slot_spans(blocks)
    assert [span.offset + byte for span in spans for byte in range(span.length)] == expected
    assert all(span.offset >= 0 and span.offset + span.length <= POOL.num_bytes for span in spans)


@given(tables)
def test_neighbours_are_one_span(blocks: list[int]) -> None:
    stretches = list(runs(blocks))
    assert [first + i for first, count in stretches for i in range(count)] == blocks
    for (first, count), (following, _) in pairwise(stretches):
        assert following != first + count
    assert len(POOL.spans(blocks, 1)) == len(stretches)


@pytest.mark.parametrize("blocks", [[20], [-1], [3, 3]])
def test_blocks_that_cannot_be_are_refused(blocks: list[int]) -> None:
    with pytest.raises(ValueError, match="block"):
        POOL.slot_spans(blocks)


@pytest.mark.parametrize(("num_blocks", "num_tokens", "skip"), [(1, 0, 0), (1, 4, 4), (1, 8, 2), (3, 8, 0), (1, 8, -4)])
def test_tickets_whose_numbers_do_not_fit_are_refused(num_blocks: int, num_tokens: int, skip: int) -> None:
    with pytest.raises(ValueError, match="token"):
        slot_of(LAYOUT, num_blocks=num_blocks, num_tokens=num_tokens, skip_tokens=skip)


@given(slots(), st.integers(0, 70))
def test_a_block_is_complete_when_no_token_of_it_is_missing(slot: Slot, ready: int) -> None:
    complete = 0
    while complete < slot.num_blocks:
        last = min(slot.skip_tokens + (complete + 1) * 4, slot.num_tokens) - 1
        if last >= ready:
            break
        complete += 1
    assert slot.complete_blocks(ready) == complete


@given(slots(), st.integers(-2, 200), st.integers(-2, 200))
def test_only_whole_cells_inside_are_cells(slot: Slot, first: int, count: int) -> None:
    cells = slot.cells(first * SIZE, count * SIZE)
    inside = first >= 0 and count > 0 and first + count <= slot.num_cells
    assert cells == (range(first, first + count) if inside else None)
    assert slot.cells(first * SIZE + 1, count * SIZE) is None
    assert slot.cells(first * SIZE, count * SIZE - 1) is None


@given(slots(), st.integers(1, 12), st.integers(0, 12), st.data())
def test_messages_are_every_cell_once_and_only_when_ready(
    slot: Slot, max_cells: int, min_cells: int, data: st.DataObject
) -> None:
    """Layers get ready as in chunked prefill; whatever the sizes, nothing goes early, twice, or not at all."""
    cells = ReadyCells(slot)
    chunk = data.draw(st.integers(1, 30))
    ready_at_start = data.draw(st.integers(0, slot.num_tokens))
    cells.advance_all(ready_at_start)
    sent: list[int] = []
    ready = [ready_at_start] * 3
    steps = [
        (layer, end)
        for end in [*range(ready_at_start + chunk, slot.num_tokens, chunk), slot.num_tokens]
        for layer in range(3)
    ]
    for step in [None, *steps]:
        if step is not None:
            cells.advance(*step)
            ready[step[0]] = step[1]
        for _ in range(data.draw(st.integers(0, 3))):
            message = cells.next_message(max_cells, min_cells)
            if message is None:
                break
            assert 1 <= len(message) <= max_cells
            for cell in message:
                assert cell % slot.num_blocks < slot.complete_blocks(ready[cell // slot.num_blocks])
            sent += message
    assert cells.all_ready
    while (message := cells.next_message(max_cells, min_cells)) is not None:
        sent += message
    assert sorted(sent) == list(range(slot.num_cells))
    assert cells.all_taken


def test_small_stretches_wait_for_the_next_layer_and_go_together() -> None:
    slot = slot_of(LAYOUT, num_blocks=2, num_tokens=8, skip_tokens=0)
    cells = ReadyCells(slot)
    cells.advance(0, 8)
    assert cells.next_message(max_cells=6, min_cells=4) is None
    cells.advance(1, 8)
    assert cells.next_message(max_cells=6, min_cells=4) == range(4)
    cells.advance(2, 8)
    assert cells.next_message(max_cells=6, min_cells=4) == range(4, 6)


@given(st.integers(1, 7), st.integers(0, 30), st.integers(1, 30))
def test_by_layer_cuts_at_the_layers(num_blocks: int, first: int, count: int) -> None:
    pieces = list(by_layer(range(first, first + count), num_blocks))
    named = [layer * num_blocks + block for layer, start, end in pieces for block in range(start, end)]
    assert named == list(range(first, first + count))
    assert len({layer for layer, _, _ in pieces}) == len(pieces)
