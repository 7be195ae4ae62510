"""Macro instances: which replicas take turns with each other, as data, and how they split and merge (mitosis).

EcoServe (Du et al., OSDI'26, §3.4): replicas come and go one at a time; a macro instance that exceeds N_u (`most`)
members splits N_l (`least`) off; two whose sizes sum to N_u merge. New replicas fill the oldest macro instance that has
room, the last one to be formed grows beyond N_u and splits. The smallest that has more than N_l gives first: when a
replica leaves another one, that one is filled up by *migration*. A fleet smaller than N_l is one macro instance.

A move changes this table and nothing else: whoever runs streams goes on with them, no KV and no weights cross.

Taken literally the paper flaps: at N_u + 1 replicas it splits and at N_u it merges. Here two are merged only after they
could have been for `cooldown_s` without a break, and nothing splits for `cooldown_s` after a merge. The paper's limits
are for steady states; during a wait one may hold more than N_u, or fewer than N_l.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from zlib import crc32

import msgspec

from scheduling.macro_config import MacroConfig


@dataclass(slots=True, eq=False)
class MacroInstance:
    """Replicas that take turns: `members` in order of id, `pointer` the one whose turn it is. Formed at `since`."""

    name: str
    since: float
    members: list[str]
    pointer: str | None = None

    def __len__(self) -> int:
        return len(self.members)

    def rolling(self, scattered_at: float | None = None) -> list[str]:
        """The members in cyclic order, the pointer's replica first; with a time, the others in an order that follows
        from it alone and has nothing to do with the ring (EcoServe's ablation, OSDI'26, §4.5)."""
        start = 0 if self.pointer is None else bisect_left(self.members, self.pointer)
        ring = self.members[start:] + self.members[:start]
        if scattered_at is None:
            return ring
        return ring[:1] + sorted(ring[1:], key=lambda name: crc32(f"{scattered_at!r} {name}".encode()))

    def _drop(self, replica_id: str) -> None:
        """Take a member out. A pointer on it moves to the next."""
        at = bisect_left(self.members, replica_id)
        del self.members[at]
        if self.pointer == replica_id:
            self.pointer = self.members[at % len(self.members)] if self.members else None

    def _take(self, replica_id: str) -> None:
        insort(self.members, replica_id)
        if self.pointer is None:
            self.pointer = replica_id


class Move(msgspec.Struct, frozen=True):
    """One change of the partition that is worth telling. `replica_ids` belong to another macro instance now."""

    kind: str
    reason: str
    replica_ids: tuple[str, ...]
    numbers: Mapping[str, float]


class MacroInstances:
    """The partition of the replicas that take turns, oldest macro instance first. Every replica added is in one."""

    def __init__(self, config: MacroConfig) -> None:
        self._config = config
        self._macros: dict[str, MacroInstance] = {}
        self._macro_of: dict[str, MacroInstance] = {}
        self._named = 0
        self._merged_at = -math.inf
        self._mergeable_since: float | None = None
        self.settle_at = math.inf
        """When a split or a merge that had to wait is due."""

    def __iter__(self) -> Iterator[MacroInstance]:
        return iter(self._macros.values())

    def __len__(self) -> int:
        return len(self._macros)

    def __contains__(self, replica_id: str) -> bool:
        return replica_id in self._macro_of

    @property
    def num_members(self) -> int:
        """Replicas in all macro instances."""
        return len(self._macro_of)

    def of(self, replica_id: str) -> MacroInstance | None:
        """The macro instance of a replica, None for one that takes no turns."""
        return self._macro_of.get(replica_id)

    def get(self, name: str | None) -> MacroInstance | None:
        """The macro instance of that name, if it is still there."""
        return None if name is None else self._macros.get(name)

    def add(self, replica_id: str, now: float) -> list[Move]:
        """A replica that takes turns from now on. It must not be there."""
        assert replica_id not in self._macro_of
        macro = self._to_grow() or self._form(now)
        self._put(replica_id, macro)
        return self.settle(now)

    def remove(self, replica_id: str, now: float) -> list[Move]:
        """A replica takes no turns any more. The one that can spare a member best makes up for it."""
        left = self._macro_of.pop(replica_id)
        donor = self.to_shrink()
        left._drop(replica_id)
        if not left.members:
            del self._macros[left.name]
        moves = []
        if donor is not left and left.members and len(donor) > self._config.least:
            moves.append(self.migrate(donor.rolling()[-1], left, "to make up for one that left"))
        return moves + self.settle(now)

    def to_shrink(self) -> MacroInstance:
        """Which one gives a member when the fleet shrinks: the smallest with more than N_l (the newest of equals); when
        there is none, the newest of the largest. There must be one."""
        newest_first = list(reversed(self._macros.values()))
        spare = [macro for macro in newest_first if len(macro) > self._config.least]
        return min(spare, key=len) if spare else max(newest_first, key=len)

    def migrate(self, replica_id: str, to: MacroInstance, why: str) -> Move:
        """Move a replica to another macro instance, whatever runs there."""
        giver = self._macro_of[replica_id]
        assert giver is not to
        giver._drop(replica_id)
        if not giver.members:
            del self._macros[giver.name]
        self._put(replica_id, to)
        reason = f"{replica_id} from {giver.name} ({len(giver)} left) to {to.name} (now {len(to)}) {why}"
        return Move("macro_migrate", reason, (replica_id,), {"giver_size": len(giver), "taker_size": len(to)})

    def settle(self, now: float) -> list[Move]:
        """Make the splits and merges that are due, and note in `settle_at` when one that has to wait will be."""
        moves: list[Move] = []
        self.settle_at = math.inf
        self._split_due(now, moves)
        while (pair := self._mergeable()) is not None:
            if self._mergeable_since is None:
                self._mergeable_since = now
            if now < self._mergeable_since + self._config.cooldown_s:
                self.settle_at = min(self.settle_at, self._mergeable_since + self._config.cooldown_s)
                return moves
            moves.append(self._merge(*pair, now))
        self._mergeable_since = None
        return moves

    def _to_grow(self) -> MacroInstance | None:
        """Where the next replica goes: one below N_l, else the oldest with room, else the newest, which then splits."""
        macro = None
        for macro in self._macros.values():
            if len(macro) < self._config.least:
                return macro
        return next((other for other in self._macros.values() if len(other) < self._config.most), macro)

    def _split_due(self, now: float, moves: list[Move]) -> None:
        for macro in list(self._macros.values()):
            while len(macro) > self._config.most:
                may_at = self._merged_at + self._config.cooldown_s
                if now < may_at:
                    self.settle_at = min(self.settle_at, may_at)
                    break
                moves.append(self._split(macro, now))

    def _split(self, macro: MacroInstance, now: float) -> Move:
        """Split N_l members off. They are taken evenly from the cyclic order, for those that follow each other
        prefilled one after the other: so both parts have some whose streams have slack. The pointer stays."""
        size, least = len(macro), self._config.least
        order = macro.rolling()
        parted = [order[(2 * i + 1) * size // (2 * least)] for i in range(least)]
        formed = self._form(now)
        for replica_id in parted:
            macro._drop(replica_id)
            self._put(replica_id, formed)
        reason = (
            f"{macro.name} had {size} members, over {self._config.most}: {len(macro)} stay, {least} are {formed.name}"
        )
        numbers = {"size": size, "most": self._config.most, "stay": len(macro), "formed": least}
        return Move("macro_split", reason, tuple(parted), numbers)

    def _mergeable(self) -> tuple[MacroInstance, MacroInstance] | None:
        """The two smallest, the older first, when they fit into one."""
        if len(self._macros) < 2:
            return None
        newest_first = list(reversed(self._macros.values()))
        smallest = sorted(newest_first, key=len)[:2]
        if len(smallest[0]) + len(smallest[1]) > self._config.most:
            return None
        older = next(macro for macro in self._macros.values() if macro in smallest)
        return older, smallest[1] if smallest[0] is older else smallest[0]

    def _merge(self, older: MacroInstance, newer: MacroInstance, now: float) -> Move:
        """The older one keeps its name and its pointer."""
        sizes = (len(older), len(newer))
        moved = tuple(newer.members)
        del self._macros[newer.name]
        for replica_id in moved:
            self._put(replica_id, older)
        self._merged_at = now
        reason = (
            f"{older.name} and {newer.name} have {sizes[0]} + {sizes[1]} members, which fit into one of "
            f"{self._config.most} since {self._config.cooldown_s:.0f} s"
        )
        numbers = {"older_size": sizes[0], "newer_size": sizes[1], "most": self._config.most}
        return Move("macro_merge", reason, moved, numbers)

    def _form(self, now: float) -> MacroInstance:
        self._named += 1
        formed = MacroInstance(f"m{self._named}", now, [])
        self._macros[formed.name] = formed
        return formed

    def _put(self, replica_id: str, macro: MacroInstance) -> None:
        macro._take(replica_id)
        self._macro_of[replica_id] = macro
