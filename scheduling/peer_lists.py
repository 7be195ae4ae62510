"""Who may send KV to whom: every replica that computes prompts for others is told who decodes. Live and simulated.

Where roles may change, replicas that serve requests whole are told of a few others too: what a hand-off between two of
them would cost is measured before anybody decides to have one. And whoever was told of once stays told of while it
lives, whatever the roles: hand-offs to it may be under way, and its link is warm when the role comes back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass
from itertools import count

from contracts.handoff import Peer
from contracts.phase import Role
from contracts.views import ReplicaIdentity

FEW = 2


@dataclass(slots=True)
class Known:
    """A joined replica. `told` is what it was told last on its present connection, `number` its place among all."""

    identity: ReplicaIdentity
    role: Role
    number: int
    told: tuple[Peer, ...] | None = None


class PeerLists:
    """The replicas that are joined, and what each was told last on its present connection.

    A list depends on few others: only lists of replicas that something changed for are made anew, and what is sorted is
    kept so. In a fleet of thousands everything else would take longer than all decisions together.
    """

    def __init__(self) -> None:
        self._known: dict[str, Known] = {}
        self._whole: list[str] = []
        self._decode: list[str] = []
        self._prefill: set[str] = set()
        self._told_of: dict[str, set[str]] = {}
        self._changed: set[str] = set()
        self._numbers = count()

    def joined(self, identity: ReplicaIdentity, role: Role) -> None:
        """A connection is new: whatever the replica was told before may be forgotten there."""
        name = identity.replica_id
        before = self._known.get(name)
        self._take_out(name)
        number = next(self._numbers) if before is None else before.number
        self._known[name] = Known(identity, role, number)
        self._put_in(name)

    def left(self, replica_id: str) -> None:
        """The connection is over."""
        if replica_id in self._known:
            self._take_out(replica_id)
            del self._known[replica_id]

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
        self._take_out(replica_id, keep_told=True)
        self._known[replica_id].role = role
        self._put_in(replica_id)

    def news(self) -> list[tuple[str, tuple[Peer, ...]]]:
        """The lists that replicas have to be told now, each the whole list of its peers."""
        told = []
        changed = [name for name in self._changed if name in self._known]
        self._changed.clear()
        for name in sorted(changed, key=lambda name: self._known[name].number):
            known, names = self._known[name], self._peers_of(name)
            if names is None:
                continue
            peers = tuple(_peer(self._known[other].identity) for other in names)
            if peers != known.told:
                self._note_told(name, peers)
                told.append((name, peers))
        return told

    def _peers_of(self, name: str) -> list[str] | None:
        """Whom a replica may send KV to, in order of id; None for one that need not be told anything.

        All decode replicas, for a prefill replica. The `FEW` that follow it in the order of ids among those that serve
        requests whole and have a data plane, for such a one: so each is measured from and to, at a bounded cost. Those
        it was told of before, if the same process lives there: also a replica that gives nothing away at the moment.
        """
        me = self._known[name]
        names = {peer.replica_id for peer in me.told or () if self._lives(peer)}
        if me.role is Role.PREFILL:
            names.update(self._decode)
        elif me.role is not Role.DECODE and me.identity.data_endpoints:
            at = bisect_right(self._whole, name)
            names.update(
                (self._whole[at:] + self._whole[:FEW] if at + FEW > len(self._whole) else self._whole[at : at + FEW])[
                    :FEW
                ]
            )
        names.discard(name)
        if not names and me.told is None and me.role is not Role.PREFILL:
            return None
        return sorted(names)

    def _lives(self, peer: Peer) -> bool:
        known = self._known.get(peer.replica_id)
        return (
            known is not None and bool(known.identity.data_endpoints) and known.identity.incarnation == peer.incarnation
        )

    def _note_told(self, name: str, peers: tuple[Peer, ...] | None) -> None:
        known = self._known[name]
        for peer in known.told or ():
            told_of = self._told_of[peer.replica_id]
            told_of.discard(name)
            if not told_of:
                del self._told_of[peer.replica_id]
        known.told = peers
        for peer in peers or ():
            self._told_of.setdefault(peer.replica_id, set()).add(name)

    def _take_out(self, name: str, *, keep_told: bool = False) -> None:
        known = self._known.get(name)
        if known is None:
            return
        if not keep_told:
            self._note_told(name, None)
        self._prefill.discard(name)
        for names in (self._whole, self._decode):
            at = bisect_left(names, name)
            if at < len(names) and names[at] == name:
                del names[at]
        self._note_changed(name, known)

    def _put_in(self, name: str) -> None:
        known = self._known[name]
        if known.role is Role.PREFILL:
            self._prefill.add(name)
        if known.identity.data_endpoints and known.role is not Role.PREFILL:
            insort(self._decode if known.role is Role.DECODE else self._whole, name)
        self._note_changed(name, known)

    def _note_changed(self, name: str, known: Known) -> None:
        """Its own list, those that name it, and those that it may belong on."""
        self._changed.add(name)
        self._changed |= self._told_of.get(name, set())
        if known.role is Role.DECODE:
            self._changed |= self._prefill
        elif known.role is not Role.PREFILL and self._whole:
            at = bisect_left(self._whole, name)
            self._changed.update(self._whole[(at - back) % len(self._whole)] for back in range(1, FEW + 1))


def _peer(identity: ReplicaIdentity) -> Peer:
    return Peer(
        replica_id=identity.replica_id,
        incarnation=identity.incarnation,
        endpoints=identity.data_endpoints,
        fingerprint=identity.fingerprint,
    )
