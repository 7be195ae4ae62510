"""The replicas as a fleet: which of them may be given work now, their loads, and the rolling pointer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from contracts.phase import Role
from contracts.views import ReplicaIdentity, ReplicaView
from scheduling.cluster_replica import WHOLE, ReplicaRecord
from scheduling.config import ClusterCoreConfig
from scheduling.plan_inputs import FleetLoads, Load


class Fleet:
    """All live replicas by id, and the rolling pointer. Iteration is in order of id, so decisions are repeatable.

    `changes` grows whenever replicas come or go, drain or change their role.
    """

    def __init__(self, config: ClusterCoreConfig) -> None:
        self._config = config
        self._records: dict[str, ReplicaRecord] = {}
        self._census: Counter[frozenset[Role]] = Counter()
        self._order: tuple[str | None, list[ReplicaRecord]] = (None, [])
        self.changes = 0
        self.alternating: list[ReplicaRecord] = []
        self.pointer: str | None = None

    def __iter__(self) -> Iterator[ReplicaRecord]:
        return iter(self._records.values())

    def __len__(self) -> int:
        return len(self._records)

    def get(self, replica_id: str | None) -> ReplicaRecord | None:
        """The live replica of that name, if any."""
        return None if replica_id is None else self._records.get(replica_id)

    def join(self, identity: ReplicaIdentity, view: ReplicaView, now: float) -> None:
        """Add a replica. It must not be there."""
        assert identity.replica_id not in self._records
        joined = ReplicaRecord(identity, view, now, last_submit_index=view.acked_submit_index)
        self._records[identity.replica_id] = joined
        self._records = dict(sorted(self._records.items()))
        self._count()

    def report(self, record: ReplicaRecord, view: ReplicaView, now: float) -> None:
        """Take a replica's newer view."""
        old = record.view
        record.report(view, now)
        if (view.role, view.draining, view.num_blocks) != (old.role, old.draining, old.num_blocks):
            self._count()

    def rejoin(self, record: ReplicaRecord, identity: ReplicaIdentity) -> None:
        """The same process said anew who it is."""
        record.identity = identity
        self._count()

    def drop(self, replica_id: str) -> ReplicaRecord | None:
        """Remove a replica; its record is the caller's to wind up."""
        dropped = self._records.pop(replica_id, None)
        self._count()
        return dropped

    def _count(self) -> None:
        """Live replicas that are not draining, by what they are there for. How old a view may be depends on it."""
        self.changes += 1
        self._order = (None, [])
        self.alternating = [record for record in self if record.view.role is Role.ALTERNATING]
        self._census = Counter(_group(record.view.role) for record in self if not record.view.draining)
        for record in self:
            record.touch()

    @property
    def num_open(self) -> int:
        """Live replicas that are not draining."""
        return self._census.total()

    def closed_reason(self, record: ReplicaRecord, now: float) -> str | None:
        """Why nothing may be placed on this replica now, or None."""
        view, age_s = record.view, now - record.view_at
        if view.draining:
            return "draining"
        if age_s > self._oldest_view_s(record):
            return f"last view {age_s:.1f} s old"
        if view.step_age_s > 0 and view.step_age_s + age_s > self._config.step_stuck_s:
            return f"one step has run for {view.step_age_s + age_s:.1f} s"
        return None

    def _oldest_view_s(self, record: ReplicaRecord) -> float:
        """How old a view may be: more when there is no other replica of its kind to turn to."""
        alone = self._census[_group(record.view.role)] == 1
        return self._config.view_dead_s if alone else self._config.view_stale_s

    def _closes_at(self, record: ReplicaRecord) -> float:
        """Until when an open replica stays open without another view."""
        stale_at = record.view_at + self._oldest_view_s(record)
        if record.view.step_age_s <= 0:
            return stale_at
        return min(stale_at, record.view_at + self._config.step_stuck_s - record.view.step_age_s)

    def loads(self, now: float, reserve_tokens: int, avoid: frozenset[str] = frozenset()) -> FleetLoads:
        """Loads of all replicas by role; of those that serve requests whole, the ones in `avoid` are left out.

        `reserve_tokens` is the output length expected.
        """
        by_role: dict[Role, list[Load]] = {}
        links = {}
        for record in self._rolling_order():
            role = record.view.role
            if avoid and role in WHOLE and record.replica_id in avoid:
                continue
            load = record.kept_load(now, reserve_tokens)
            if load is None or load.closed is not None:
                closed = self.closed_reason(record, now)
                load = record.load(closed, self._closes_at(record), now, reserve_tokens, self._config)
            by_role.setdefault(role, []).append(load)
            if role is Role.PREFILL:
                links[record.replica_id] = record.links
        return FleetLoads(
            ring=by_role.get(Role.ALTERNATING, ()),
            mixed=by_role.get(Role.MIXED, ()),
            prefill=by_role.get(Role.PREFILL, ()),
            decode=by_role.get(Role.DECODE, ()),
            links=links,
        )

    def keep_pointer_open(self, now: float) -> None:
        """Move the rolling pointer on when its replica can no longer take work and another alternating one can."""
        held = self.get(self.pointer)
        if held is not None and held.view.role is Role.ALTERNATING and self.closed_reason(held, now) is None:
            return
        if not self.alternating:
            return
        order = [record for record in self._rolling_order() if record.view.role is Role.ALTERNATING]
        for record in order:
            if self.closed_reason(record, now) is None:
                self.pointer = record.replica_id
                return
        if order and self.get(self.pointer) is None:
            self.pointer = order[0].replica_id

    def _rolling_order(self) -> list[ReplicaRecord]:
        """Cyclic order by id, starting with the pointer's replica (or the next one if it is gone)."""
        if self._order[0] != self.pointer or not self._order[1]:
            records = list(self._records.values())
            pointer = self.pointer or ""
            start = next((i for i, record in enumerate(records) if record.replica_id >= pointer), 0)
            self._order = (self.pointer, records[start:] + records[:start])
        return self._order[1]


def _group(role: Role) -> frozenset[Role]:
    return WHOLE if role in WHOLE else frozenset({role})
