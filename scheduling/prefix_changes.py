"""Lists of block names as messages of a bounded size."""

from __future__ import annotations

from collections.abc import Sequence

from contracts.prefixes import MAX_NAMES, PrefixChange


def changes_of(added: Sequence[int], removed: Sequence[int], block_size: int) -> list[PrefixChange]:
    """What came and what went, at most `MAX_NAMES` in each: first what went, so that a listener which keeps count of a
    full cache has room for what came."""
    return [
        *(PrefixChange(block_size=block_size, removed=names) for names in _portions(removed)),
        *(PrefixChange(block_size=block_size, added=names) for names in _portions(added)),
    ]


def contents_of(names: Sequence[int], block_size: int) -> list[PrefixChange]:
    """All that a cache holds: the first message makes everything said before void, and is there even if it is empty."""
    first, rest = tuple(names[:MAX_NAMES]), names[MAX_NAMES:]
    return [PrefixChange(block_size=block_size, added=first, restart=True), *changes_of(rest, (), block_size)]


def _portions(names: Sequence[int]) -> list[tuple[int, ...]]:
    return [tuple(names[start : start + MAX_NAMES]) for start in range(0, len(names), MAX_NAMES)]
