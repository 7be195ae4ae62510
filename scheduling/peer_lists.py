"""Who may send KV to whom: every replica that computes prompts for others is told who decodes. Live and simulated.

Where roles may change, replicas that serve requests whole are told of a few others too: what a hand-off between two of
them would cost is measured before anybody decides to have one. And whoever was told of once stays told of while it
lives, whatever the roles: hand-offs to it may be under way, and its link is warm when the role comes back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from contracts.handoff import Peer
from contracts.phase import Role
from contracts.views import ReplicaIdentity

FEW = 2


@dataclass(slots=True)
class Known:
    """A joined replica. `told` is what it was told last on its present connection."""

    identity: ReplicaIdentity
    role: Role
    told: tuple[Peer, ...] | None = None


class PeerLists:
    """The replicas that are joined, and what each was told last on its present connection."""

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}

    def joined(self, identity: ReplicaIdentity, role: Role) -> None:
        """A connection is new: whatever the replica was told before may be forgotten there."""
        self._known[identity.replica_id] = Known(identity, role)

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

    def news(self) -> list[tuple[str, tuple[Peer, ...]]]:
        """The lists that replicas have to be told now, each the whole list of its peers."""
        told = []
        for replica_id, known in self._known.items():
            names = peers_of(replica_id, self._known)
            if names is None:
                continue
            peers = tuple(_peer(self._known[name].identity) for name in names)
            if peers != known.told:
                known.told = peers
                told.append((replica_id, peers))
        return told


def peers_of(replica_id: str, known: Mapping[str, Known]) -> list[str] | None:
    """Whom a replica may send KV to, in order of id; None for one that need not be told anything.

    All decode replicas, for a prefill replica. The `FEW` that follow it in the order of ids among those that serve
    requests whole and have a data plane, for such a one: so each is measured from and to, at a bounded cost. Those it
    was told of before, if the same process lives there: also a replica that gives nothing away at the moment.
    """
    me = known[replica_id]
    reachable = {name for name, other in known.items() if other.identity.data_endpoints and name != replica_id}
    before = me.told or ()
    names = {
        peer.replica_id
        for peer in before
        if peer.replica_id in reachable and known[peer.replica_id].identity.incarnation == peer.incarnation
    }
    if me.role is Role.PREFILL:
        names |= {name for name in reachable if known[name].role is Role.DECODE}
    elif me.role is not Role.DECODE and me.identity.data_endpoints:
        whole = {name for name in reachable if known[name].role in (Role.ALTERNATING, Role.MIXED)}
        names |= set(sorted(whole, key=lambda name: (name < replica_id, name))[:FEW])
    if not names and me.told is None and me.role is not Role.PREFILL:
        return None
    return sorted(names)


def _peer(identity: ReplicaIdentity) -> Peer:
    return Peer(
        replica_id=identity.replica_id,
        incarnation=identity.incarnation,
        endpoints=identity.data_endpoints,
        fingerprint=identity.fingerprint,
    )
