"""What a discovery may say to the fleet and ask of it (`contracts.discovery.FleetSide`)."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable

from contracts.cluster_io import ClusterEvent, LeaderChanged, ReplicaDrainRequested, RoleRequested
from contracts.discovery import ReplicaStanding
from contracts.errors import PhaseServeError
from router.membership import Links
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_replica import ReplicaRecord
from scheduling.shards import shard_of


class FleetSide:
    """`feed` hands an event to the core and performs what it says. Of `shards` routers this is number `shard`."""

    def __init__(
        self, core: ClusterCore, links: Links, feed: Callable[[ClusterEvent], None], shard: int, shards: int
    ) -> None:
        self._core, self._links, self._feed = core, links, feed
        self._shard, self._shards = shard, shards

    def found(self, endpoints: Collection[str]) -> None:
        """This router's share of them."""
        self._links.found(shard_of(endpoints, self._shard, self._shards))

    def lead(self, leader: str | None) -> None:
        """To the core."""
        self._feed(LeaderChanged(leader))

    def standings(self) -> dict[str, ReplicaStanding]:
        """Of all that are joined."""
        endpoints = {link.replica_id: link.endpoint for link in self._links if link.replica_id is not None}
        records: Iterable[ReplicaRecord] = self._core.placement.fleet
        return {
            record.replica_id: _standing(record, endpoints[record.replica_id])
            for record in records
            if record.replica_id in endpoints
        }

    def why_not_drain(self, replica_id: str) -> PhaseServeError | None:
        """As the core says."""
        return self._core.why_not_drain(replica_id)

    def tell(self, wish: RoleRequested | ReplicaDrainRequested) -> None:
        """To the core."""
        self._feed(wish)

    def note(self, kind: str, reason: str, **numbers: float) -> None:
        """Among the core's own decisions."""
        self._core.placement.fleet_decisions.note(time.monotonic(), kind, reason, None, **numbers)


def _standing(record: ReplicaRecord, endpoint: str) -> ReplicaStanding:
    view = record.view
    return ReplicaStanding(
        replica_id=record.replica_id,
        incarnation=record.identity.incarnation,
        endpoint=endpoint,
        role=view.role,
        requests=len(record.placed),
        sequences=view.running + view.waiting + view.sending,
        draining=view.draining,
    )
