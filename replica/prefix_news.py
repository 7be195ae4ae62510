"""Each router hears what this replica's prefix cache holds: everything once, from then on what changes. No policy.

At most `PER_BEAT` messages a heartbeat go to one router. One that more than `MAX_BEHIND` messages are still to be said
to gets everything anew instead, so what is kept for a router is bounded.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

from contracts import wire
from contracts.prefixes import MAX_NAMES, PrefixChange
from replica.routers import Routers

PER_BEAT = 4
MAX_BEHIND = 64


class Cache(Protocol):
    """What is needed of `scheduling.replica_core.ReplicaCore`."""

    def take_prefix_changes(self) -> list[PrefixChange]:
        """What changed since this was last asked."""
        ...

    def prefix_contents(self) -> list[PrefixChange]:
        """Everything; nothing when there is no prefix cache."""
        ...


class PrefixNews:
    """Says to the routers of `routers` what `cache` holds, a cache of `num_blocks` blocks."""

    def __init__(self, cache: Cache, routers: Routers, num_blocks: int) -> None:
        self._cache = cache
        self._routers = routers
        self._max_behind = MAX_BEHIND + num_blocks // MAX_NAMES

    def tell(self) -> None:
        """A heartbeat: say the next part to each router. What a new one needs was all there before it is asked for
        the next changes, so nothing is said twice and nothing left out."""
        changes = self._cache.take_prefix_changes()
        contents: list[PrefixChange] | None = None
        for session in self._routers.sessions.all():
            unsaid = session.prefixes_unsaid
            if unsaid is None or len(unsaid) + len(changes) > self._max_behind:
                contents = self._cache.prefix_contents() if contents is None else contents
                session.prefixes_unsaid = unsaid = deque(contents)
            else:
                unsaid.extend(changes)
            for _ in range(min(PER_BEAT, len(unsaid))):
                if self._routers.sessions.at(session.identity) is not session:
                    break  # it was given up just now
                self._routers.send(session, wire.Prefixes(change=unsaid.popleft()))
