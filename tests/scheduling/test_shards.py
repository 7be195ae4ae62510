"""Which router owns which replica."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from scheduling.shards import shard_of

NAMES = st.sets(st.text(min_size=1, max_size=8), max_size=40)


@given(NAMES, st.integers(1, 8))
def test_every_replica_has_one_owner_and_shares_differ_by_one_at_most(names: set[str], count: int) -> None:
    shards = [shard_of(names, index, count) for index in range(count)]
    assert sorted(name for shard in shards for name in shard) == sorted(names)
    sizes = [len(shard) for shard in shards]
    assert max(sizes) - min(sizes) <= 1


@given(st.lists(st.text(min_size=1, max_size=8), unique=True, max_size=20), st.integers(1, 5), st.randoms())
def test_the_order_in_which_replicas_are_known_does_not_matter(names: list[str], count: int, chance: object) -> None:
    shuffled = sorted(names, key=lambda name: hash((name, id(chance))))
    assert [shard_of(names, i, count) for i in range(count)] == [shard_of(shuffled, i, count) for i in range(count)]


def test_a_replica_that_comes_moves_few_others() -> None:
    names = [f"tcp://host{i}:7000" for i in range(64)]
    moved = 0
    for i in range(64):
        before = {name: k for k in range(4) for name in shard_of(names[:i] + names[i + 1 :], k, 4)}
        after = {name: k for k in range(4) for name in shard_of(names, k, 4)}
        moved += sum(after[name] != router for name, router in before.items())
    assert moved / 64 < 8  # of 63; all would be dealt anew by a plain remainder
