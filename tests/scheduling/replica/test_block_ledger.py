"""The block ledger: references, eviction order, hash chains."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.block_ledger import ROOT_HASH, BlockLedger, chain_hash, extend_hashes


def test_a_chain_names_content_and_everything_before_it() -> None:
    hashes: list[bytes] = []
    extend_hashes(hashes, [1, 2, 3, 4, 5, 6, 7], 7, 2)
    assert len(hashes) == 3  # the half block has no name yet
    assert hashes[0] == chain_hash(ROOT_HASH, [1, 2])
    assert hashes[1] == chain_hash(hashes[0], (3, 4)) != chain_hash(ROOT_HASH, [3, 4])
    extend_hashes(hashes, [1, 2, 3, 4, 5, 6, 7, 8], 8, 2)
    assert len(hashes) == 4


def test_the_name_of_a_block_never_changes_between_runs_and_machines() -> None:
    assert chain_hash(ROOT_HASH, [1, 258]).hex() == "bf272d81e712837b84f0d2099f6445a0"


def test_eviction_takes_the_least_recently_used_chain_from_its_end() -> None:
    ledger = BlockLedger(4)
    old, young = ledger.allocate(2), ledger.allocate(2)
    names = [bytes([i]) * 16 for i in range(4)]
    for block, name in zip([*old, *young], names, strict=True):
        ledger.register(block, name)
    ledger.release(old)
    ledger.release(young)
    assert ledger.num_free == 4
    ledger.acquire(ledger.match(names[:1], 9))  # old[0] is used again
    assert ledger.allocate(1) == [old[1]]
    assert ledger.allocate(1) == [young[1]]
    assert ledger.allocate(1) == [young[0]]
    assert ledger.num_free == 0
    assert [ledger.is_cached(name) for name in names] == [True, False, False, False]
    ledger.check()


def test_a_referenced_block_is_never_evicted() -> None:
    ledger = BlockLedger(2)
    blocks = ledger.allocate(1)
    ledger.register(blocks[0], b"a" * 16)
    ledger.acquire(blocks)
    ledger.release(blocks)
    assert ledger.num_free == 1
    assert ledger.allocate(1) != blocks
    with pytest.raises(AssertionError, match="1 blocks asked, 0 free"):
        ledger.allocate(1)


def test_giving_back_twice_is_noticed() -> None:
    ledger = BlockLedger(1)
    blocks = ledger.allocate(1)
    ledger.release(blocks)
    with pytest.raises(AssertionError, match="released twice"):
        ledger.release(blocks)


def test_a_second_block_of_the_same_content_stays_private() -> None:
    ledger = BlockLedger(2)
    first, second = ledger.allocate(2)
    ledger.register(first, b"a" * 16)
    ledger.register(second, b"a" * 16)
    ledger.release([second])
    ledger.release([first])
    assert ledger.match([b"a" * 16], 1) == [first]
    ledger.check()


def test_without_caching_nothing_is_found() -> None:
    ledger = BlockLedger(1, caching=False)
    blocks = ledger.allocate(1)
    ledger.register(blocks[0], b"a" * 16)
    assert ledger.match([b"a" * 16], 1) == []


@given(st.lists(st.tuples(st.sampled_from(["take", "give", "share"]), st.integers(0, 5)), max_size=80))
def test_free_and_used_always_add_up(operations: list[tuple[str, int]]) -> None:
    ledger = BlockLedger(8)
    holders: list[list[int]] = []
    for operation, number in operations:
        if operation == "take" and number <= ledger.num_free:
            blocks = ledger.allocate(number)
            for index, block in enumerate(blocks):
                ledger.register(block, bytes([number, index]) * 8)
            holders.append(blocks)
        elif operation == "give" and holders:
            ledger.release(holders.pop(number % len(holders)))
        elif operation == "share":
            found = ledger.match([bytes([number, index]) * 8 for index in range(number)], number)
            ledger.acquire(found)
            holders.append(found)
        ledger.check()
        used = {block for holder in holders for block in holder}
        assert ledger.num_free == 8 - len(used)
    for holder in holders:
        ledger.release(holder)
    assert ledger.num_free == 8
