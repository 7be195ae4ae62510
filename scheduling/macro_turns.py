"""Whose turn it is to prefill in each macro instance, and who belongs to which: kept in step with the fleet."""

from __future__ import annotations

from collections.abc import Callable

from contracts.phase import Role
from scheduling.cluster_replica import ReplicaRecord
from scheduling.fleet_decisions import FleetDecisions
from scheduling.macro_instances import MacroInstance, MacroInstances, Move


class MacroTurns:
    """The macro instances of a fleet. `get` knows its live replicas, `closed_reason` why one may be given nothing now;
    who is affected by a change is added to `touched`."""

    def __init__(
        self,
        macros: MacroInstances,
        get: Callable[[str | None], ReplicaRecord | None],
        closed_reason: Callable[[ReplicaRecord, float], str | None],
        touched: set[str],
        decisions: FleetDecisions,
    ) -> None:
        self.macros = macros
        self._get = get
        self._closed_reason = closed_reason
        self._touched = touched
        self._decisions = decisions
        self._last: str | None = None

    @property
    def last(self) -> MacroInstance | None:
        """The macro instance that took the last request."""
        return self.macros.get(self._last)

    def take(self, record: ReplicaRecord, now: float) -> None:
        """An alternating replica takes a request: its macro instance's turn is with it from now on."""
        macro = self.macros.of(record.replica_id)
        assert macro is not None
        self._last = macro.name
        self._turn_to(macro, record, now)

    def keep(self, replica_id: str, now: float) -> None:
        """When the one whose turn it is in this replica's macro instance can no longer take work, the turn goes to the
        next that can, if any."""
        macro = self.macros.of(replica_id)
        if macro is None:
            return
        held = self._get(macro.pointer)
        if held is not None and self._closed_reason(held, now) is None:
            return
        for member in map(self._member, macro.rolling()):
            if self._closed_reason(member, now) is None:
                self._turn_to(macro, member, now)
                return

    def has(self, record: ReplicaRecord) -> bool:
        """Whether it is this replica's turn to prefill."""
        macro = self.macros.of(record.replica_id)
        return macro is not None and macro.pointer == record.replica_id

    def settle(self, record: ReplicaRecord, now: float) -> None:
        """Put a live replica into a macro instance, or take it out, as its role and whether it drains ask for."""
        takes_turns = record.view.role is Role.ALTERNATING and not record.draining
        macro = self.macros.of(record.replica_id)
        if takes_turns and macro is None:
            moves = self.macros.add(record.replica_id, now)
            self._note_macro(record)
            self._moved(moves, now)
        elif not takes_turns:
            self.leave(record, now)

    def leave(self, record: ReplicaRecord, now: float) -> None:
        """It takes no turns any more."""
        name, macro = record.replica_id, self.macros.of(record.replica_id)
        if macro is None:
            return
        moves = self.macros.remove(name, now)
        record.macro_instance = None
        self._touched.update(macro.members)
        sizes = {"size": len(macro), "replicas": self.macros.num_members}
        reason = f"{name} left {macro.name}, which has {len(macro)} members now"
        self._decisions.note(now, "macro_leave", reason, name, **sizes)
        self._moved(moves, now)

    def settle_sizes(self, now: float) -> None:
        """Splits and merges that had to wait for their time."""
        if now >= self.macros.settle_at:
            self._moved(self.macros.settle(now), now)

    def _turn_to(self, macro: MacroInstance, record: ReplicaRecord, now: float) -> None:
        replica_id = record.replica_id
        if macro.pointer != replica_id:
            self._touched.update({replica_id} if macro.pointer is None else {macro.pointer, replica_id})
            macro.pointer = replica_id
            record.begin_turn(now)

    def _moved(self, moves: list[Move], now: float) -> None:
        """Replicas are in other macro instances now: whatever runs there is not touched."""
        for move in moves:
            only = move.replica_ids[0] if len(move.replica_ids) == 1 else None
            self._decisions.note(now, move.kind, move.reason, only, **move.numbers)
            for replica_id in move.replica_ids:
                self._note_macro(self._member(replica_id))

    def _member(self, replica_id: str) -> ReplicaRecord:
        record = self._get(replica_id)
        assert record is not None, f"{replica_id} is in a macro instance, but not in the fleet"
        return record

    def _note_macro(self, record: ReplicaRecord) -> None:
        macro = self.macros.of(record.replica_id)
        record.macro_instance = None if macro is None else macro.name
        record.touch()
