"""The index against brute force, and what it forgets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.prefixes import PrefixChange, PromptPrefix
from scheduling.block_ledger import extend_hashes, name_of
from scheduling.prefix_index import PrefixIndex

BLOCK = 4
NAMES = st.lists(st.integers(0, 9), max_size=6).map(tuple)
CHANGES = st.lists(
    st.tuples(st.sampled_from("abc"), NAMES, NAMES, st.sampled_from(["change", "restart", "forget"])), max_size=25
)


@settings(max_examples=200, deadline=None)
@given(CHANGES, st.lists(st.integers(0, 9), max_size=8, unique=True))
def test_the_index_finds_what_a_look_at_every_replica_finds(
    changes: list[tuple[str, tuple[int, ...], tuple[int, ...], str]], asked: list[int]
) -> None:
    index = PrefixIndex()
    held: dict[str, set[int]] = {}
    for replica_id, removed, added, deed in changes:
        if deed == "forget":
            index.forget(replica_id)
            held.pop(replica_id, None)
            continue
        restart = deed == "restart"
        change = PrefixChange(block_size=BLOCK, added=added, removed=removed, restart=restart)
        index.change(replica_id, change, num_blocks=100)
        before = set() if restart else held.get(replica_id, set())
        held[replica_id] = (before - set(removed)) | set(added)
    want = {}
    for replica_id, names in held.items():
        count = next((i for i, name in enumerate(asked) if name not in names), len(asked))
        if count:
            want[replica_id] = count * BLOCK
    prefix = PromptPrefix(block_size=BLOCK, names=tuple(asked))
    assert index.cached_tokens(prefix) == want
    assert len(index) == len(set().union(*held.values()))
    best = index.best(prefix, 2)
    assert [want[replica_id] for replica_id in best] == sorted(want.values(), reverse=True)[:2]


def test_a_replica_is_known_to_hold_no_more_than_it_can() -> None:
    index = PrefixIndex()
    index.change("a", PrefixChange(block_size=BLOCK, added=tuple(range(50))), num_blocks=10)
    assert index.num_names("a") == len(index) == 10
    index.change("a", PrefixChange(block_size=BLOCK, removed=tuple(range(50)), added=(90,)), num_blocks=10)
    assert index.num_names("a") == 1
    assert index.knows(90)
    assert not index.knows(0)


def test_numbers_of_replicas_that_left_are_used_again() -> None:
    index = PrefixIndex()
    for number in range(1000):
        index.change(f"r{number}", PrefixChange(block_size=BLOCK, added=(number, 7)), num_blocks=10)
        index.forget(f"r{number - 1}")
    assert max(index._holders.values()) < 8
    assert index.cached_tokens(PromptPrefix(block_size=BLOCK, names=(7,))) == {"r999": BLOCK}


def test_a_prompt_is_named_as_far_as_anybody_holds_it_and_never_by_its_last_token() -> None:
    tokens = list(range(3 * BLOCK))
    hashes: list[bytes] = []
    extend_hashes(hashes, tokens, len(tokens), BLOCK)
    names = tuple(map(name_of, hashes))
    index = PrefixIndex()
    assert index.name(tokens) is None
    index.change("a", PrefixChange(block_size=BLOCK, added=names), num_blocks=10)
    assert index.name(tokens) == PromptPrefix(block_size=BLOCK, names=names[:2])
    assert index.name([*tokens, 1]) == PromptPrefix(block_size=BLOCK, names=names)
    assert index.name([9, *tokens]) is None
    index.change("a", PrefixChange(block_size=BLOCK, removed=names[1:2]), num_blocks=10)
    assert index.name([*tokens, 1]) == PromptPrefix(block_size=BLOCK, names=names[:1])
