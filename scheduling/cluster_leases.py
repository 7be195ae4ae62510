"""Prefill leases of the alternating replicas: who may prefill, until when."""

from __future__ import annotations

from heapq import heappop, heappush

from contracts.cluster_io import ClusterAction, GrantLease, RevokeLease
from contracts.phase import Role
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import ReplicaRecord
from scheduling.config import ClusterCoreConfig

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING = Role.ALTERNATING


def grant(record: ReplicaRecord, now: float, config: ClusterCoreConfig) -> GrantLease:
    """A full lease from now on."""
    record.lease_until = now + config.lease_s
    return GrantLease(record.replica_id, config.lease_s)


class PrefillLeases:
    """Extends and withdraws leases so that they are held by exactly these alternating replicas:

    - in each macro instance the one whose turn it is, so that one is always open for prefill;
    - any that still has prompts to prefill: it finishes its window after the turn went on, after it moved to another
      macro instance or while it drains, and a preempted sequence is recomputed without waiting for the next turn.

    A lease is renewed when less than half of it is left. A lost router thus leaves its replicas decoding.

    Only replicas that something changed about are looked at, and those whose time has come: a lease to renew, a view
    that is too old to keep the turn. `_due` holds at most one entry for each, by the earliest such time.
    """

    def __init__(self, config: ClusterCoreConfig) -> None:
        self._config = config
        self._due: list[tuple[float, str]] = []
        self._due_at: dict[str, float] = {}

    def renew(self, fleet: Fleet, now: float) -> list[ClusterAction]:
        """What to tell the replicas at `now`, after every event."""
        due = self._due
        asked = self._concerned(fleet)
        while due and due[0][0] <= now:
            due_at, replica_id = heappop(due)
            if self._due_at.get(replica_id) == due_at:
                del self._due_at[replica_id]
                asked.append(replica_id)
        if not asked:
            return []
        for replica_id in sorted(set(asked)):
            fleet.macro_turns.keep(replica_id, now)
        actions: list[ClusterAction] = []
        for replica_id in sorted({*asked, *self._concerned(fleet)}):
            record = fleet.get(replica_id)
            if record is not None:
                actions += self._judge(record, fleet, now)
        return actions

    def _concerned(self, fleet: Fleet) -> list[str]:
        """Of those that something changed about, the ones that take turns or hold a lease still."""
        concerned = []
        for replica_id in fleet.touched:
            record = fleet.get(replica_id)
            if record is None:
                self._due_at.pop(replica_id, None)
            elif record.lease_until is not None or record.view.role is _ALTERNATING:
                concerned.append(replica_id)
        fleet.touched.clear()
        return concerned

    def _judge(self, record: ReplicaRecord, fleet: Fleet, now: float) -> list[ClusterAction]:
        has_turn = fleet.macro_turns.has(record)
        wanted = record.view.role is _ALTERNATING and (has_turn or record.has_prefill_work)
        left_s = 0.0 if record.lease_until is None else record.lease_until - now
        actions: list[ClusterAction] = []
        if wanted and left_s < self._config.lease_s / 2:
            actions.append(grant(record, now, self._config))
        elif not wanted and record.lease_until is not None:
            if left_s > 0:
                actions.append(RevokeLease(record.replica_id))
            record.lease_until = None
        if wanted and record.lease_until is not None:
            renew_at = record.lease_until - self._config.lease_s / 2
            open_now = has_turn and fleet.closed_reason(record, now) is None
            self._look_again(record.replica_id, min(renew_at, fleet.closes_at(record)) if open_now else renew_at)
        return actions

    def _look_again(self, replica_id: str, at: float) -> None:
        """An earlier entry is kept: looking too early does no harm."""
        known = self._due_at.get(replica_id)
        if known is None or at < known:
            self._due_at[replica_id] = at
            heappush(self._due, (at, replica_id))
