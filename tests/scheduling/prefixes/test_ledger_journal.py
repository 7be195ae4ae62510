"""What a cache is said to hold is what it holds: the journal against the ledger under random use."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.prefixes import MAX_NAMES
from scheduling.block_ledger import BlockLedger, chain_hash, name_of
from scheduling.prefix_changes import changes_of, contents_of

NUM_BLOCKS = 6
Deed = tuple[str, int]
DEEDS = st.lists(
    st.tuples(st.sampled_from(["take", "register", "release", "listen", "join"]), st.integers(0, 11)), max_size=60
)


@settings(max_examples=150, deadline=None)
@given(DEEDS)
def test_a_listener_always_ends_up_with_what_the_cache_holds(deeds: list[Deed]) -> None:
    ledger = BlockLedger(NUM_BLOCKS)
    held: list[int] = []
    heard: set[int] = set()
    for deed, number in deeds:
        match deed:
            case "take" if ledger.num_free:
                held += ledger.allocate(1)
            case "register" if held:
                ledger.register(held[number % len(held)], chain_hash(b"", (number,)))
            case "release" if held:
                ledger.release([held.pop(number % len(held))])
            case "join":
                ledger.take_journal()
                heard = set(ledger.cached_names())
            case "listen":
                added, removed = ledger.take_journal()
                assert len(added) <= NUM_BLOCKS
                assert set(removed) <= heard
                assert not set(added) & heard
                heard = (heard - set(removed)) | set(added)
                assert heard == set(ledger.cached_names())
        ledger.check()
    added, removed = ledger.take_journal()
    assert len(removed) <= NUM_BLOCKS
    assert (heard - set(removed)) | set(added) == set(ledger.cached_names())


def test_a_block_that_came_and_went_is_not_told() -> None:
    ledger = BlockLedger(1)
    [block] = ledger.allocate(1)
    ledger.register(block, chain_hash(b"", (1,)))
    ledger.release([block])
    ledger.release(ledger.allocate(1))
    assert ledger.take_journal() == ([], [])


def test_without_a_cache_nothing_is_told() -> None:
    ledger = BlockLedger(2, caching=False)
    [block] = ledger.allocate(1)
    ledger.register(block, chain_hash(b"", (1,)))
    assert ledger.take_journal() == ([], [])
    assert ledger.cached_names() == []


def test_long_lists_are_told_in_portions_what_went_first() -> None:
    names = list(range(MAX_NAMES + 1))
    told = changes_of(names, [-1], 16)
    assert [(len(change.removed), len(change.added)) for change in told] == [(1, 0), (0, MAX_NAMES), (0, 1)]
    everything = contents_of(names, 16)
    assert [change.restart for change in everything] == [True, False]
    assert [name for change in everything for name in change.added] == names
    assert [change.restart for change in contents_of([], 16)] == [True]


def test_the_short_name_is_the_first_eight_bytes() -> None:
    block_hash = chain_hash(b"\0" * 16, range(16))
    assert name_of(block_hash) == int.from_bytes(block_hash[:8], "little") < 2**64
