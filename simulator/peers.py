"""Who may send KV to whom, as the live router tells it: every prefill replica is told who decodes."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.handoff import Peer
from contracts.phase import Role
from contracts.views import ReplicaIdentity


@dataclass(slots=True)
class _Known:
    identity: ReplicaIdentity
    role: Role
    told: tuple[Peer, ...] | None = None


class PeerLists:
    """The replicas that are joined, and what each was told last."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}

    def joined(self, identity: ReplicaIdentity, role: Role) -> None:
        """A connection is new."""
        self._known[identity.replica_id] = _Known(identity, role)

    def left(self, replica_id: str) -> None:
        """The connection is over."""
        self._known.pop(replica_id, None)

    def role_of(self, replica_id: str) -> Role | None:
        """As it was told last."""
        known = self._known.get(replica_id)
        return None if known is None else known.role

    def changed_role(self, replica_id: str, role: Role) -> None:
        """A view says that it is another now."""
        self._known[replica_id].role = role

    def news(self) -> list[tuple[str, tuple[Peer, ...]]]:
        """The lists that replicas have to be told now, each whole."""
        receivers = tuple(
            Peer(
                replica_id=replica_id,
                incarnation=known.identity.incarnation,
                endpoints=known.identity.data_endpoints,
                fingerprint=known.identity.fingerprint,
            )
            for replica_id, known in sorted(self._known.items())
            if known.role is Role.DECODE
        )
        told = []
        for replica_id, known in self._known.items():
            if known.role is Role.PREFILL and receivers != known.told:
                known.told = receivers
                told.append((replica_id, receivers))
        return told
