"""Which of several router processes owns which replica: shared-nothing, so that no two routers decide about one.

Rendezvous hashing with bounded loads: of all (replica, router) pairs, in the order of a hash of both names, each is
taken whose replica is still free and whose router has not its share yet. Every router that knows the same replicas
finds the same answer, shares differ by one at most, and a replica that comes or goes moves few others. Sources: Thaler
and Ravishankar, "Using name-based mappings to increase hit rates" (1998); Mirrokni et al., "Consistent hashing with
bounded loads" (2018).
"""

from __future__ import annotations

from collections.abc import Collection
from hashlib import blake2b


def shard_of(replicas: Collection[str], index: int, count: int) -> list[str]:
    """The replicas, sorted, that router `index` of `count` owns. The first `len(replicas) % count` routers own one more
    than the others."""
    assert 0 <= index < count
    share, more = divmod(len(replicas), count)
    room = [share + (router < more) for router in range(count)]
    owner: dict[str, int] = {}
    for _, replica, router in sorted((_weight(name, k), name, k) for name in set(replicas) for k in range(count)):
        if replica not in owner and room[router]:
            owner[replica] = router
            room[router] -= 1
    return sorted(name for name, router in owner.items() if router == index)


def _weight(replica: str, router: int) -> bytes:
    return blake2b(f"{router}/{replica}".encode(), digest_size=8).digest()
