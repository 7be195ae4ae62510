"""Who may send KV to whom: every replica that computes prompts for others is told who decodes."""

from __future__ import annotations

from dataclasses import dataclass

from contracts import wire
from contracts.handoff import Peer
from contracts.phase import Role
from contracts.views import ReplicaIdentity


@dataclass(slots=True)
class _Known:
    identity: ReplicaIdentity
    role: Role
    told: wire.Peers | None = None


class PeerLists:
    """The replicas that are joined, and what each was told last on its present connection."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def joined(self, identity: ReplicaIdentity, role: Role) -> None:
        """A connection is new: whatever the replica was told before may be forgotten there."""
        self._known[identity.replica_id] = _Known(identity, role)

    def left(self, replica_id: str) -> None:
        """The connection is over."""
        self._known.pop(replica_id, None)

    def role_of(self, replica_id: str) -> Role | None:
        """As it was told last."""
        known = self._known.get(replica_id)
        return None if known is None else known.role

    def identity_of(self, replica_id: str) -> ReplicaIdentity | None:
        """As it was said at the handshake."""
        known = self._known.get(replica_id)
        return None if known is None else known.identity

    def changed_role(self, replica_id: str, role: Role) -> None:
        """A view says that it is another now."""
        self._known[replica_id].role = role

    def news(self) -> list[tuple[str, wire.Peers]]:
        """The lists that replicas have to be told now, each the whole list of its peers."""
        told = []
        for replica_id, known in self._known.items():
            if known.role is not Role.PREFILL:
                continue
            peers = wire.Peers(peers=self._receivers())
            if peers != known.told:
                known.told = peers
                told.append((replica_id, peers))
        return told

    def _receivers(self) -> tuple[Peer, ...]:
        return tuple(
            Peer(
                replica_id=replica_id,
                incarnation=known.identity.incarnation,
                endpoints=known.identity.data_endpoints,
                fingerprint=known.identity.fingerprint,
            )
            for replica_id, known in sorted(self._known.items())
            if known.role is Role.DECODE and known.identity.data_endpoints
        )
