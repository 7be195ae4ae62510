"""Between a router and whatever tells it where its replicas are: a file, Kubernetes. Durations only, all in seconds.

The discovery finds addresses; whether a replica lives there is for the router's own connection to it to say. An address
that is no longer found is not connected to anew, and a replica that is connected stays until it ends the connection.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Protocol

import msgspec

from contracts.cluster_io import ProposeReplicas, ReplicaDrainRequested, RoleRequested
from contracts.errors import PhaseServeError
from contracts.phase import Role


class ReplicaStanding(msgspec.Struct, frozen=True, kw_only=True):
    """One joined replica, as far as somebody outside has to know. `requests` counts this router's on it, `sequences`
    all that it has, whoever sent them, those included whose KV is still to be fetched."""

    replica_id: str
    incarnation: str
    endpoint: str
    role: Role
    requests: int
    sequences: int
    draining: bool


class FleetSide(Protocol):
    """What a discovery may say to its router, and ask it. To be called on the router's event loop."""

    def found(self, endpoints: Collection[str]) -> None:
        """The replicas' control endpoints (`tcp://host:port`), all of them, each time."""
        ...

    def lead(self, leader: str | None) -> None:
        """Who of several routers over one fleet proposes sizes and changes roles: None for this one."""
        ...

    def standings(self) -> Mapping[str, ReplicaStanding]:
        """The joined replicas, by id."""
        ...

    def why_not_drain(self, replica_id: str) -> PhaseServeError | None:
        """Why the replica cannot be spared now, or None."""
        ...

    def tell(self, wish: RoleRequested | ReplicaDrainRequested) -> None:
        """Ask for a role or a drain."""
        ...

    def note(self, kind: str, reason: str, **numbers: float) -> None:
        """Remember a decision about the fleet that was taken outside, for `/fleet/decisions`."""
        ...


class Discovery(Protocol):
    """Finds replicas; may also follow what is proposed about their number."""

    async def run(self, fleet: FleetSide) -> None:
        """Keep the fleet told until cancelled. What goes wrong outside is logged and tried again, never raised."""
        ...

    def proposed(self, proposal: ProposeReplicas) -> None:
        """The fleet would do better with more or fewer replicas. Must not block."""
        ...

    def trouble(self) -> str | None:
        """What keeps it from knowing the fleet now, or None."""
        ...

    def figures(self) -> Mapping[str, float]:
        """For metrics: name to value; a name that ends in `_total` counts since the start."""
        ...
