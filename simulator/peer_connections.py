"""The connections of one simulated replica to those that it may send KV to: the router names them, a handshake later
they are up."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from contracts.handoff import Peer
from contracts.replica_io import LinkDown, LinkUp
from contracts.views import ReplicaIdentity
from simulator.clock import Clock
from simulator.transfers import TRANSPORT, DataPlane


class PeerConnections:
    """`hear` is told of links that come up or go down; it must do nothing once the process is gone."""

    def __init__(
        self, mine: ReplicaIdentity, clock: Clock, plane: DataPlane, hear: Callable[[LinkUp | LinkDown], None]
    ) -> None:
        self._mine = mine
        self._clock = clock
        self._latency_s = plane.network.latency_s
        self._hear = hear
        self._peers: dict[str, Peer] = {}

    def set_peers(self, peers: Sequence[Peer]) -> None:
        """These from now on."""
        named = {peer.replica_id: peer for peer in peers if peer.replica_id != self._mine.replica_id}
        for replica_id, peer in list(self._peers.items()):
            if named.get(replica_id) != peer:
                del self._peers[replica_id]
                self._hear(LinkDown(replica_id, peer.incarnation, "the router no longer names it"))
        for replica_id, peer in named.items():
            if replica_id not in self._peers:
                self._peers[replica_id] = peer
                self._clock.after(4.0 * self._latency_s, self._shook_hands, peer)

    def _shook_hands(self, peer: Peer) -> None:
        if self._peers.get(peer.replica_id) is not peer:
            return
        mine, theirs = self._mine.fingerprint, peer.fingerprint
        if mine != theirs:
            self._hear(LinkDown(peer.replica_id, peer.incarnation, f"fingerprints differ: {mine} and {theirs}"))
        else:
            self._hear(LinkUp(peer.replica_id, peer.incarnation, TRANSPORT, TRANSPORT, self._latency_s))
