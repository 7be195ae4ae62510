"""The partition into macro instances: the paper's examples step by step, and its bounds under any order of events."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.errors import ConfigError
from scheduling.macro_config import MacroConfig
from scheduling.macro_instances import MacroInstances


def bounds(least: int, most: int, cooldown_s: float = 30.0) -> MacroConfig:
    return MacroConfig(least=least, most=most, cooldown_s=cooldown_s)


def grown(config: MacroConfig, count: int) -> MacroInstances:
    """`count` replicas that came one after the other at time 0."""
    macros = MacroInstances(config)
    for number in range(count):
        macros.add(f"r{number:03d}", 0.0)
    return macros


def sizes(macros: MacroInstances) -> list[int]:
    return [len(macro) for macro in macros]


def checked(macros: MacroInstances, replicas: set[str]) -> None:
    """Every replica in exactly one, in cyclic order, with a turn that is a member's."""
    assert Counter(member for macro in macros for member in macro.members) == Counter(replicas)
    for macro in macros:
        assert macro.members == sorted(macro.members)
        assert macro.pointer in macro.members
        assert sorted(macro.rolling()) == macro.members
        assert macro.rolling()[0] == macro.pointer
        assert all(macros.of(member) is macro for member in macro.members)


def test_the_papers_growth_with_3_and_6() -> None:
    macros = MacroInstances(bounds(3, 6))
    seen = []
    for number in range(16):
        macros.add(f"r{number:03d}", 0.0)
        seen.append(sizes(macros))
    assert seen[:6] == [[1], [2], [3], [4], [5], [6]]
    assert seen[6] == [4, 3]  # the seventh: N_u + 1 - N_l stay, N_l are split off
    assert seen[7:9] == [[5, 3], [6, 3]]  # the original is filled up first
    assert seen[9:12] == [[6, 4], [6, 5], [6, 6]]  # then the new one
    assert seen[12:] == [[6, 4, 3], [6, 5, 3], [6, 6, 3], [6, 6, 4]]


def test_the_twelfth_of_6_and_11_gives_two_of_6_which_merge_on_the_way_down() -> None:
    macros = grown(bounds(6, 11), 11)
    assert sizes(macros) == [11]
    (move,) = macros.add("r011", 5.0)
    assert (move.kind, sizes(macros)) == ("macro_split", [6, 6])
    for number in range(12, 16):
        assert macros.add(f"r{number:03d}", 6.0) == []
    assert sizes(macros) == [10, 6]
    for number in range(15, 10, -1):
        macros.remove(f"r{number:03d}", 100.0)
    assert sum(sizes(macros)) == 11
    assert sizes(macros) == [6, 5]
    assert macros.settle(129.9) == []
    (move,) = macros.settle(130.0)
    assert (move.kind, sizes(macros)) == ("macro_merge", [11])


@pytest.mark.parametrize(
    ("bounds_", "count", "downward"),
    [
        ((3, 6), 12, [[6, 5], [6, 4], [6, 3], [5, 3], [4, 3], [6], [5], [4], [3], [2], [1], []]),
        ((6, 11), 17, [[10, 6], [9, 6], [8, 6], [7, 6], [6, 6], [11], [10]]),
        ((3, 6), 13, [[6, 6], [6, 5], [6, 4]]),
    ],
)
def test_the_papers_way_down(bounds_: tuple[int, int], count: int, downward: list[list[int]]) -> None:
    """The smallest gives until it has N_l, then a full one; two that sum to N_u merge. Whoever it is that leaves."""
    for leaving_first in (True, False):
        macros = grown(bounds(*bounds_), count)
        now, left = 0.0, [f"r{number:03d}" for number in range(count)]
        for expected in downward:
            now += 1000.0
            macros.remove(left.pop(0 if leaving_first else -1), now)
            macros.settle(now + 500.0)
            assert sorted(sizes(macros)) == sorted(expected)
            checked(macros, set(left))


def test_a_split_takes_evenly_from_the_cyclic_order_and_leaves_the_turn() -> None:
    macros = grown(bounds(3, 6), 6)
    only = next(iter(macros))
    only.pointer = "r002"
    (move,) = macros.add("r006", 1.0)
    first, second = macros
    assert first.pointer == "r002"
    assert first.rolling() == ["r002", "r004", "r006", "r001"]
    assert second.members == ["r000", "r003", "r005"]
    assert move.replica_ids == ("r003", "r005", "r000")
    assert second.pointer == "r003"  # of those split off, the next in the cyclic order
    assert second.since == 1.0


def test_the_turn_goes_to_the_next_when_its_replica_leaves() -> None:
    macros = grown(bounds(3, 6), 3)
    only = next(iter(macros))
    only.pointer = "r001"
    macros.remove("r001", 0.0)
    assert only.pointer == "r002"
    macros.remove("r002", 0.0)
    assert only.pointer == "r000"  # round the end
    macros.remove("r000", 0.0)
    assert sizes(macros) == []


def test_one_who_leaves_a_full_macro_instance_is_made_up_for_by_migration() -> None:
    macros = grown(bounds(3, 6), 11)  # 6 + 5
    first, second = macros
    leaving, spared = first.members[2], second.rolling()[-1]
    (move,) = macros.remove(leaving, 1.0)
    assert move.kind == "macro_migrate"
    assert move.replica_ids == (spared,)
    assert sizes(macros) == [6, 4]
    assert macros.of(spared) is first


def test_one_more_or_less_around_the_upper_bound_does_not_flap() -> None:
    """Read literally, the paper splits and merges at each of these steps."""
    macros = grown(bounds(6, 11, cooldown_s=30.0), 11)
    moves, now = [], 0.0
    for number in range(40):
        now += 10.0
        moves += macros.add(f"x{number}", now)
        now += 10.0
        moves += macros.remove(f"x{number}", now)
    assert [move.kind for move in moves if move.kind != "macro_migrate"] == ["macro_split"]


def test_slow_steps_around_the_upper_bound_change_at_most_once_each_cooldown() -> None:
    macros = grown(bounds(6, 11, cooldown_s=30.0), 11)
    changes, now = [], 0.0
    for number in range(200):
        now += 7.0
        steps = macros.settle(now)
        if number % 20 == 0:
            steps += macros.add(f"x{number}", now)
        if number % 20 == 10:
            steps += macros.remove(f"x{number - 10}", now)
        changes += [now for move in steps if move.kind in {"macro_split", "macro_merge"}]
    assert changes, "it is slow enough to follow"
    assert all(later - earlier >= 30.0 for earlier, later in pairwise(changes))


def test_a_wait_says_when_it_ends() -> None:
    macros = grown(bounds(3, 6, cooldown_s=10.0), 7)
    macros.remove("r006", 5.0)  # 4 + 3 - 1: could be merged, and waits
    assert macros.settle_at == 15.0
    macros.settle(15.0)
    assert sizes(macros) == [6]
    macros.add("r006", 16.0)  # over N_u, and waits
    assert sizes(macros) == [7]
    assert macros.settle_at == 25.0
    macros.settle(25.0)
    assert sizes(macros) == [4, 3]
    assert macros.settle_at == float("inf")


def test_fewer_than_n_l_are_one_macro_instance() -> None:
    assert sizes(grown(bounds(6, 11), 5)) == [5]
    assert sizes(grown(bounds(1, 1), 3)) == [1, 1, 1]


@pytest.mark.parametrize(("least", "most"), [(0, 5), (3, 4), (6, 10)])
def test_bounds_that_a_split_would_break_are_refused(least: int, most: int) -> None:
    with pytest.raises(ConfigError, match=r"macro\."):
        bounds(least, most)


@settings(max_examples=80, deadline=None)
@given(
    least=st.integers(1, 4),
    extra=st.integers(0, 4),
    script=st.lists(st.tuples(st.booleans(), st.integers(0, 2**16), st.floats(0, 12)), max_size=70),
)
def test_the_bounds_hold_after_any_churn(least: int, extra: int, script: list[tuple[bool, int, float]]) -> None:
    macros = MacroInstances(bounds(least, 2 * least - 1 + extra, cooldown_s=5.0))
    live: set[str] = set()
    now = 0.0
    for number, (comes, which, after) in enumerate(script):
        now += after
        if comes or not live:
            name = f"{which % 1000:03d}-{number}"
            macros.add(name, now)
            live.add(name)
        else:
            name = sorted(live)[which % len(live)]
            macros.remove(name, now)
            live.discard(name)
        checked(macros, live)
    now += 100.0
    while macros.settle_at <= now:
        macros.settle(now)
        checked(macros, live)
        now += 100.0
    if len(live) <= least:
        assert sizes(macros) == ([len(live)] if live else [])
    assert all(min(least, len(live)) <= size <= 2 * least - 1 + extra for size in sizes(macros)), sizes(macros)
