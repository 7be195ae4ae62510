"""The replicas as a fleet: which of them may be given work now, their loads, and whose turn it is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from contracts.phase import Role
from contracts.views import ReplicaIdentity, ReplicaView
from scheduling.cluster_replica import WHOLE, ReplicaRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_decisions import FleetDecisions
from scheduling.fleet_index import FleetIndex, usable_links
from scheduling.macro_instances import MacroInstance, MacroInstances
from scheduling.macro_turns import MacroTurns
from scheduling.plan_inputs import FleetLoads, Load

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING, _MIXED, _PREFILL, _DECODE = Role.ALTERNATING, Role.MIXED, Role.PREFILL, Role.DECODE


class Fleet:
    """All live replicas by id, and their macro instances. Iteration is in order of id, so decisions are repeatable.

    Every alternating replica is in exactly one macro instance; it leaves it when it is to drain: it finishes there what
    it has, but it takes no turns. `changes` grows whenever replicas come or go, drain, change their role or links.
    `touched` are those that something has changed about since the leases were last looked at; some may be gone.
    """

    def __init__(self, config: ClusterCoreConfig, decisions: FleetDecisions) -> None:
        self._config, self._rule = config, config.rule
        self._records: dict[str, ReplicaRecord] = {}
        self._in_order: list[ReplicaRecord] | None = None
        self._census: Counter[frozenset[Role]] = Counter()
        self.changes = 0
        self.touched: set[str] = set()
        self.macro_turns = MacroTurns(
            MacroInstances(config.macro), self.get, self.closed_reason, self.touched, decisions
        )
        self.index = FleetIndex(self._rule.level)
        self._unsorted: set[str] = set()
        self._smallest = (-1, 0, 0)

    def __iter__(self) -> Iterator[ReplicaRecord]:
        if self._in_order is None:
            self._records = dict(sorted(self._records.items()))
            self._in_order = list(self._records.values())
        return iter(self._in_order)

    def __len__(self) -> int:
        return len(self._records)

    def get(self, replica_id: str | None) -> ReplicaRecord | None:
        """The live replica of that name, if any."""
        return self._records.get(replica_id) if replica_id is not None else None

    def join(self, identity: ReplicaIdentity, view: ReplicaView, now: float) -> None:
        """Add a replica. It must not be there."""
        assert identity.replica_id not in self._records
        joined = ReplicaRecord(
            identity, view, now, view.acked_submit_index, touched=self.touched, unsorted=self._unsorted
        )
        if view.lease_left_s > 0:  # it was lost, and its process was not: what it may still do is to be withdrawn
            joined.lease_until = now + view.lease_left_s
        self._records[identity.replica_id] = joined
        self._in_order = None
        self._enter(joined, now)

    def report(self, record: ReplicaRecord, view: ReplicaView, now: float) -> None:
        """Take a replica's newer view."""
        old = record.view
        if view.role is old.role and view.draining == old.draining and view.num_blocks == old.num_blocks:
            if view.role is _PREFILL and usable_links(view) != usable_links(old):
                self.changes += 1
            record.report(view, now)
            return
        self._leave(record)
        record.report(view, now)
        self._enter(record, now)

    def rejoin(self, record: ReplicaRecord, identity: ReplicaIdentity) -> None:
        """The same process said anew who it is."""
        record.identity = identity
        self.changes += 1
        record.touch()

    def drop(self, replica_id: str, now: float) -> ReplicaRecord | None:
        """Remove a replica; its record is the caller's to wind up."""
        dropped = self._records.pop(replica_id, None)
        if dropped is None:
            return None
        self._in_order = None
        self.touched.add(replica_id)
        self._unsorted.add(replica_id)
        self._leave(dropped)
        self.macro_turns.leave(dropped, now)
        return dropped

    def drain(self, record: ReplicaRecord, now: float) -> None:
        """Nothing new for this replica from now on: it was asked to leave."""
        self._leave(record)
        record.drain_requested = True
        self._enter(record, now)

    def _leave(self, record: ReplicaRecord) -> None:
        """Take a replica out of the census, before what it is there for changes."""
        self.changes += 1
        if not record.draining:
            self._recount(_group(record.view.role), -1)

    def _enter(self, record: ReplicaRecord, now: float) -> None:
        """Count a replica by what it is there for now. A role other than before ends its turns, or begins them."""
        self.changes += 1
        if not record.draining:
            self._recount(_group(record.view.role), 1)
        self.macro_turns.settle(record, now)
        record.touch()

    def _recount(self, group: frozenset[Role], change: int) -> None:
        """Replicas that are not draining, by what they are there for. How old a view may be depends on whether one is
        alone."""
        self._census[group] += change
        if self._census[group] in {1, 1 + change}:
            for record in self._records.values():
                if record.view.role in group:
                    record.touch()

    @property
    def macros(self) -> MacroInstances:
        """Every alternating replica that takes turns is in one of them."""
        return self.macro_turns.macros

    @property
    def any_draining(self) -> bool:
        """Whether any of them leaves, or is to leave."""
        return self._census.total() < len(self._records)

    @property
    def num_open(self) -> int:
        """Live replicas that are not draining."""
        return self._census.total()

    def closed_reason(self, record: ReplicaRecord, now: float) -> str | None:
        """Why nothing may be placed on this replica now, or None."""
        view, age_s = record.view, now - record.view_at
        if record.draining:
            return "draining"
        if record.becomes is not None:
            return f"becomes {record.becomes}"
        if age_s > self._oldest_view_s(record):
            return f"last view {age_s:.1f} s old"
        if view.step_age_s > 0 and view.step_age_s + age_s > self._config.step_stuck_s:
            return f"one step has run for {view.step_age_s + age_s:.1f} s"
        return None

    def _oldest_view_s(self, record: ReplicaRecord) -> float:
        """How old a view may be: more when there is no other replica of its kind to turn to."""
        alone = self._census[_group(record.view.role)] == 1
        return self._config.view_dead_s if alone else self._config.view_stale_s

    def closes_at(self, record: ReplicaRecord) -> float:
        """Until when an open replica stays open without another view."""
        stale_at = record.view_at + self._oldest_view_s(record)
        if record.view.step_age_s <= 0:
            return stale_at
        return min(stale_at, record.view_at + self._config.step_stuck_s - record.view.step_age_s)

    def loads(
        self, now: float, reserve_tokens: int, avoid: frozenset[str] = frozenset(), warm: Sequence[str] | None = None
    ) -> FleetLoads:
        """Loads by role; of replicas that serve requests whole, the ones in `avoid` are left out.

        `reserve_tokens` is the output length expected. All replicas, or with `warm` (those that have most of the prompt
        cached) only the ones that come into question: see `scheduling.fleet_index`.
        """
        self._sort()

        records = self._records
        looked_at: dict[str, Load] = {}

        def is_open(name: str) -> bool:
            load = looked_at[name] = self.load(records[name], now, reserve_tokens)
            return load.closed is None

        mixed: list[Load] = []
        prefill: list[Load] = []
        decode: list[Load] = []
        links = {}
        for name in [r.replica_id for r in self] if warm is None else self.index.beside_turns(records, warm, is_open):
            record = records[name]
            role = record.view.role
            if role is _ALTERNATING or (role is _MIXED and name in avoid):
                continue
            load = looked_at.get(name) or self.load(record, now, reserve_tokens)
            if role is _MIXED:
                mixed.append(load)
            elif role is _DECODE:
                decode.append(load)
            else:
                prefill.append(load)
                links[name] = record.links
        macros = self.index.macros(self.macros, self.macro_turns.last, warm, is_open)
        return FleetLoads(
            rings=self._rings(macros, now, reserve_tokens, avoid),
            mixed=mixed,
            prefill=prefill,
            decode=decode,
            links=links,
        )

    def _sort(self) -> None:
        """Bring the index up to date."""
        if self._unsorted:
            self.index.update({replica_id: self._records.get(replica_id) for replica_id in self._unsorted})
            self._unsorted.clear()

    def misplaced(self) -> list[str]:
        """What is wrong with the index. For invariants: nothing."""
        return self.index.misplaced(self._records, self._unsorted)

    def holds_anywhere(self, tokens: int, sequences: int) -> bool:
        """Whether every replica could take a request of that size, were it empty: else all are to be looked at."""
        if self._smallest[0] != self.changes:
            sizes = [(r.view.num_blocks * r.view.block_size, r.identity.max_waiting) for r in self]
            self._smallest = (self.changes, min(s[0] for s in sizes), min(s[1] for s in sizes))
        return tokens <= self._smallest[1] and sequences <= self._smallest[2]

    def _rings(
        self, macros: Sequence[MacroInstance], now: float, reserve_tokens: int, avoid: frozenset[str]
    ) -> list[list[Load]]:
        """One ring for each macro instance."""
        rings = []
        scattered_at = now if self._config.macro.scattered else None
        for macro in macros:
            members = (self._records[name] for name in macro.rolling(scattered_at) if name not in avoid)
            ring = [self.load(record, now, reserve_tokens) for record in members]
            if ring:
                rings.append(ring)
        return rings

    def load(self, record: ReplicaRecord, now: float, reserve_tokens: int) -> Load:
        """What placement sees of one replica."""
        load = record.kept_load(now, reserve_tokens)
        if load is None or load.closed is not None:
            closed = self.closed_reason(record, now)
            load = record.load(closed, self.closes_at(record), now, reserve_tokens, self._rule)
        return load


def _group(role: Role) -> frozenset[Role]:
    return WHOLE if role is _MIXED or role is _ALTERNATING else frozenset({role})
