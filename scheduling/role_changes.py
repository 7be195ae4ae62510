"""Roles at run time, the cluster's side: who asked for which role, said until the replica's view has it, or given up.

A change needs no drain: the replica guards the streams it has (`scheduling.role_guard`). From the request on it gets no
more work of a kind that its coming role is not for, and none of the new kind before its view says the new role.
"""

from __future__ import annotations

from dataclasses import dataclass

from contracts.cluster_io import ClusterAction, SetRole
from contracts.errors import Conflict, PhaseServeError, UnknownReplica
from contracts.phase import Role
from scheduling.cluster_availability import demanded_layout, why_roles_cannot_serve
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import POOLS, ReplicaRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_decisions import FleetDecisions

SAY_AGAIN_S = 1.0
GIVE_UP_S = 10.0
MAX_PINS = 1024


@dataclass(slots=True)
class _Change:
    role: Role
    asked_at: float
    said_at: float


class RoleChanges:
    """The changes under way, and the pins: roles that an operator chose and the fleet planner leaves alone.

    A pin outlives its replica's process: the next one under that name is given the role again.
    """

    def __init__(self, config: ClusterCoreConfig, fleet: Fleet, decisions: FleetDecisions) -> None:
        self._config = config
        self._fleet = fleet
        self._decisions = decisions
        self._changes: dict[str, _Change] = {}
        self._pins: dict[str, Role] = {}
        self._deaf: set[str] = set()

    def wanted(self, record: ReplicaRecord) -> Role:
        """The role that a replica has, or is about to have."""
        return record.wanted_role or record.view.role

    def is_pinned(self, replica_id: str) -> bool:
        """Whether an operator chose its role."""
        return replica_id in self._pins

    def why_not(self, replica_id: str, role: Role) -> PhaseServeError | None:
        """Why a replica cannot be given this role now, or None. The role that it has is no reason."""
        record = self._fleet.get(replica_id)
        if record is None:
            return UnknownReplica(f"no replica {replica_id!r} is joined", param="replica_id")
        if record.draining:
            return Conflict(f"{replica_id} is draining")
        if self.wanted(record) is role:
            return None
        if role in POOLS and not record.identity.data_endpoints:
            why = f"{replica_id} has no data plane, so it can neither give nor take KV: it cannot be {role}"
            return Conflict(f"{why} (start it with replica.roles_may_change = true)")
        if replica_id in self._deaf:
            return Conflict(f"{replica_id} did not take the last role it was given within {GIVE_UP_S:.0f} s")
        lacking = self._lacking(record, role)
        return None if lacking is None else Conflict(f"with {replica_id} as {role} nothing could be served: {lacking}")

    def why_not_leave(self, replica_id: str) -> PhaseServeError | None:
        """Why a replica cannot be drained now, or None. One that drains already may be told again."""
        record = self._fleet.get(replica_id)
        if record is None:
            return UnknownReplica(f"no replica {replica_id!r} is joined", param="replica_id")
        if record.draining:
            return None
        lacking = self._lacking(record, None)
        return None if lacking is None else Conflict(f"without {replica_id} nothing could be served: {lacking}")

    def request(
        self, replica_id: str, role: Role, now: float, *, pinned: bool, reason: str, **numbers: float
    ) -> list[ClusterAction]:
        """Give a replica this role if it can have it. What comes of it is a `FleetDecision`, a refusal too.

        `pinned` pins it, else a pin that it had is gone: whoever may not touch pins asks `is_pinned` before.
        """
        refusal = self.why_not(replica_id, role)
        if refusal is not None:
            self._decisions.note(now, "role_refused", f"{reason}: {refusal.message}", replica_id, **numbers)
            return []
        self._pin(replica_id, role, now, pinned=pinned)
        record = self._fleet.get(replica_id)
        assert record is not None
        if self.wanted(record) is role:
            return []
        told = f"{replica_id} is to be {role} instead of {record.view.role}: {reason}"
        self._decisions.note(now, "role_requested", told, replica_id, **numbers)
        return self._begin(record, role, now)

    def joined(self, record: ReplicaRecord | None, now: float) -> list[ClusterAction]:
        """A replica came, or came back: it is told what it may have missed, and a new process what was pinned."""
        if record is None:
            return []
        self._deaf.discard(record.replica_id)
        change = self._changes.get(record.replica_id)
        role = self._pins.get(record.replica_id) if change is None else change.role
        if role is None or role is record.view.role:
            self.view_came(record, now)
            return []
        if change is None and self.why_not(record.replica_id, role) is not None:
            return []
        return self._begin(record, role, now if change is None else change.asked_at, said_at=now)

    def view_came(self, record: ReplicaRecord, now: float) -> None:
        """A view says which role a replica has."""
        change = self._changes.get(record.replica_id)
        if change is None or record.view.role is not change.role:
            return
        took_s = now - change.asked_at
        reason = f"{record.replica_id} is {change.role}, {took_s:.3f} s after it was asked for"
        self._end(record)
        guarded = record.view.guarded
        self._decisions.note(now, "role_changed", reason, record.replica_id, took_s=took_s, guarded=guarded)

    def lost(self, replica_id: str, now: float) -> None:
        """A replica is gone. A pin waits for the next process of that name."""
        change = self._changes.pop(replica_id, None)
        self._deaf.discard(replica_id)
        if change is not None and replica_id not in self._pins:
            told = f"{replica_id} was lost before it was {change.role}"
            self._decisions.note(now, "role_given_up", told, replica_id, waited_s=now - change.asked_at)

    def time_passed(self, now: float) -> list[ClusterAction]:
        """Say roles again that no view shows yet, and give up on those that were said for too long."""
        actions: list[ClusterAction] = []
        for replica_id, change in list(self._changes.items()):
            record = self._fleet.get(replica_id)
            if record is None:
                self.lost(replica_id, now)
            elif now - change.asked_at >= GIVE_UP_S:
                self._give_up(record, change, now)
            elif now - change.said_at >= SAY_AGAIN_S:
                change.said_at = now
                actions.append(SetRole(replica_id, change.role))
        return actions

    def abandon(self, leader: str, now: float) -> None:
        """Another router decides about roles from now on: nothing is said again, no pin is kept."""
        for replica_id in list(self._changes):
            record = self._fleet.get(replica_id)
            if record is not None:
                self._end(record)
            self._changes.pop(replica_id, None)
            self._decisions.note(now, "role_given_up", f"{leader} leads now", replica_id)
        self._pins.clear()

    def _begin(
        self, record: ReplicaRecord, role: Role, asked_at: float, said_at: float | None = None
    ) -> list[ClusterAction]:
        self._changes[record.replica_id] = _Change(role, asked_at, asked_at if said_at is None else said_at)
        record.wanted_role = role
        record.touch()
        return [SetRole(record.replica_id, role)]

    def _end(self, record: ReplicaRecord) -> None:
        self._changes.pop(record.replica_id, None)
        record.wanted_role = None
        record.touch()

    def _give_up(self, record: ReplicaRecord, change: _Change, now: float) -> None:
        """It says views but not this: a replica of an earlier version, or one that cannot."""
        waited_s = now - change.asked_at
        reason = (
            f"{record.replica_id} is still {record.view.role}, {waited_s:.1f} s after it was told to be {change.role}"
        )
        self._end(record)
        self._deaf.add(record.replica_id)
        if self._pins.get(record.replica_id) is change.role:
            del self._pins[record.replica_id]
        self._decisions.note(now, "role_given_up", reason, record.replica_id, waited_s=waited_s)

    def _pin(self, replica_id: str, role: Role, now: float, *, pinned: bool) -> None:
        before = self._pins.pop(replica_id, None)
        if pinned:
            self._pins[replica_id] = role
            while len(self._pins) > MAX_PINS:
                del self._pins[next(iter(self._pins))]
        if pinned and before is not role:
            self._decisions.note(
                now, "role_pinned", f"{replica_id} stays {role} whatever the planner finds", replica_id
            )
        elif before is not None and not pinned:
            self._decisions.note(now, "role_unpinned", f"the planner may change the role of {replica_id}", replica_id)

    def _lacking(self, record: ReplicaRecord, role: Role | None) -> str | None:
        """What the fleet would lack to serve anything at all under the deployment's settings, or None. `role` None:
        without that replica."""
        roles = {self.wanted(other) for other in self._fleet if other is not record and not other.draining}
        roles |= set() if role is None else {role}
        if not roles:
            return "no other replica takes requests"
        if self._config.on_unavailable == "colocate":
            return None
        return why_roles_cannot_serve(roles, demanded_layout(None, self._config))
