"""Which few replicas of a large fleet come into question, so that a decision does not look at all of them.

Each group (a macro instance, or the replicas of one role) is kept in order of `room`: the prefill time that a replica
could take now within the slack that the admission rule goes by; and in order of when a late prompt may next be forced
upon it. Both depend on what a replica last said and was sent, never on the time, so
only replicas that something changed about are sorted anew: O(log n) comparisons each.

A group of at most `LIST_ALL` replicas is listed whole. Of a larger one come the `ROOMIEST` that are open, the
`SOONEST` to be forced, and those that have most of the prompt cached. Of the macro instances come the one that took the
last request, then those with the roomiest and the soonest members; each with all its members, for they take turns.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from heapq import nlargest
from itertools import islice

import msgspec

from contracts.phase import Role
from contracts.views import ReplicaView, StepCost
from scheduling.cluster_replica import ReplicaRecord
from scheduling.macro_instances import MacroInstance, MacroInstances
from scheduling.plan_predict import prompt_prefill_s
from scheduling.plan_slack import allowed_slack_s

LIST_ALL = 16
ROOMIEST = 12
SOONEST = 4
RINGS = 2
WARM = 4
NO_STREAM_S = 1e6
USUAL_PROMPT = 512
SORT_ANEW = 4
"""When more than one of so many replicas has changed, all are sorted anew."""
GIVERS_ASKED = 64
"""So many prefill replicas are asked for a link to one of the decode replicas that come into question."""

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING, _MIXED, _PREFILL, _DECODE = Role.ALTERNATING, Role.MIXED, Role.PREFILL, Role.DECODE
_Entry = tuple[float, float, str]


class _Keys(msgspec.Struct, frozen=True):
    role: Role
    roomy: _Entry
    soon: _Entry
    cost: StepCost


class FleetIndex:
    """Replicas by role, in order of room and of when they may be forced. Ids only; `update` is told of every change.
    `level` is that of the slack that the admission rule goes by, see `allowed_slack_s`.

    Who prefills fastest is seldom asked for, and changes with every view: those of `_unranked` are sorted then."""

    def __init__(self, level: float | None) -> None:
        self._level = level
        self._keys: dict[str, _Keys] = {}
        self._roomy: dict[Role, list[_Entry]] = {role: [] for role in Role}
        self._soon: dict[Role, list[_Entry]] = {role: [] for role in Role}
        self._fast: list[_Entry] = []
        self._fast_keys: dict[str, _Entry] = {}
        self._unranked: set[str] = set()

    def update(self, changed: Mapping[str, ReplicaRecord | None]) -> None:
        """Something has changed about these replicas; None: it is gone."""
        if len(changed) * SORT_ANEW > len(self._keys):
            self._sort_anew(changed)
            return
        for replica_id, record in changed.items():
            self._update(replica_id, record)

    def _sort_anew(self, changed: Mapping[str, ReplicaRecord | None]) -> None:
        """For many at once, as when a fleet comes up."""
        self._unranked.update(changed)
        for replica_id, record in changed.items():
            if record is None:
                self._keys.pop(replica_id, None)
            else:
                self._keys[replica_id] = _keys_of(record, self._level)
        for role in Role:
            keys = [keys for keys in self._keys.values() if keys.role is role]
            self._roomy[role] = sorted([key.roomy for key in keys])
            self._soon[role] = sorted([key.soon for key in keys])

    def _update(self, replica_id: str, record: ReplicaRecord | None) -> None:
        old = self._keys.pop(replica_id, None)
        new = None if record is None else _keys_of(record, self._level)
        self._unranked.add(replica_id)
        if new is not None:
            self._keys[replica_id] = new
        if old is not None and (new is None or new.role is not old.role):
            _take_out(self._roomy[old.role], old.roomy)
            _take_out(self._soon[old.role], old.soon)
            old = None
        if new is None:
            return
        if old is None:
            insort(self._roomy[new.role], new.roomy)
            insort(self._soon[new.role], new.soon)
            return
        _move(self._roomy[new.role], old.roomy, new.roomy)
        _move(self._soon[new.role], old.soon, new.soon)

    def misplaced(self, records: Mapping[str, ReplicaRecord], but: Set[str]) -> list[str]:
        """Replicas, `but` those still to be sorted, that are not where they should be. For invariants: none."""
        wrong = [name for name in self._keys if name not in records and name not in but]
        for name, record in records.items():
            if name in but:
                continue
            known, due = self._keys.get(name), _keys_of(record, self._level)
            if known is None or (known.role, known.roomy, known.soon) != (due.role, due.roomy, due.soon):
                wrong.append(name)
        for role in Role:
            keys = [keys for keys in self._keys.values() if keys.role is role]
            if self._roomy[role] != sorted(key.roomy for key in keys):
                wrong.append(f"in order of room: {role}")
            if self._soon[role] != sorted(key.soon for key in keys):
                wrong.append(f"in order of force: {role}")
        return wrong

    def fastest(self) -> str | None:
        """The replica that prefills fastest, of those not told to leave."""
        for replica_id in self._unranked:
            old, keys = self._fast_keys.pop(replica_id, None), self._keys.get(replica_id)
            if old is not None:
                _take_out(self._fast, old)
            if keys is not None:
                usual_s = prompt_prefill_s(keys.cost, USUAL_PROMPT, USUAL_PROMPT)
                self._fast_keys[replica_id] = new = (usual_s, keys.soon[0], replica_id)
                insort(self._fast, new)
        self._unranked.clear()
        return self._fast[0][2] if self._fast else None

    def beside_turns(
        self, records: Mapping[str, ReplicaRecord], warm: Sequence[str], is_open: Callable[[str], bool]
    ) -> list[str]:
        """Mixed, prefill and decode replicas that come into question, in order of id within each role. `warm` have
        most of the prompt cached; `is_open` says whether one takes work now."""
        takers = self._few(_DECODE, warm, is_open)
        return [*self._few(_MIXED, warm, is_open), *self._givers(takers, records, warm, is_open), *takers]

    def macros(
        self,
        macros: MacroInstances,
        last: MacroInstance | None,
        warm: Sequence[str] | None,
        is_open: Callable[[str], bool],
    ) -> list[MacroInstance]:
        """The macro instances that come into question (without `warm`: all), that which took the last request (`last`)
        first."""
        roomy, soon = self._roomy[_ALTERNATING], self._soon[_ALTERNATING]
        found = [] if last is None else [last]
        if warm is None or len(roomy) <= LIST_ALL:
            return found + [macro for macro in macros if macro is not last]
        most = len(found) + RINGS
        for name in islice(_open(roomy, is_open), ROOMIEST * RINGS):
            if len(found) == most:
                break
            _note(macros.of(name), found)
        for name in (*islice(_open(soon, is_open), 1), *self._of_role(_ALTERNATING, warm)):
            _note(macros.of(name), found)
        return found

    def _few(self, role: Role, warm: Sequence[str], is_open: Callable[[str], bool]) -> list[str]:
        roomy = self._roomy[role]
        if len(roomy) <= LIST_ALL:
            return sorted(map(_name, roomy))
        names = {*islice(_open(roomy, is_open), ROOMIEST), *islice(_open(self._soon[role], is_open), SOONEST)}
        if warm:
            names.update(self._of_role(role, warm))
        return sorted(names or map(_name, roomy))

    def _givers(
        self,
        takers: Sequence[str],
        records: Mapping[str, ReplicaRecord],
        warm: Sequence[str],
        is_open: Callable[[str], bool],
    ) -> list[str]:
        """Of many prefill replicas those with a link to one of `takers`; all where none is found soon."""
        roomy = self._roomy[_PREFILL]
        if len(roomy) <= LIST_ALL:
            return sorted(map(_name, roomy))
        asked = islice(_open(roomy, is_open), GIVERS_ASKED)
        linked = (name for name in asked if any(taker in records[name].links for taker in takers))
        names = {*self._of_role(_PREFILL, warm), *islice(linked, ROOMIEST)}
        return sorted(names or map(_name, roomy))

    def _of_role(self, role: Role, names: Sequence[str]) -> list[str]:
        return [name for name in names if name in self._keys and self._keys[name].role is role]


def warmest(cached: Mapping[str, int], count: int) -> list[str]:
    """The replicas that have most of a prompt cached, from the tokens that each has."""
    return nlargest(count, sorted(cached), key=lambda name: cached[name]) if cached else []


def usable_links(view: ReplicaView) -> set[tuple[str, str]]:
    """The processes that a replica can hand over to."""
    return {(link.peer_id, link.peer_incarnation) for link in view.links if link.why_not is None}


def room_s(record: ReplicaRecord, level: float | None) -> float:
    """Upper bound of the prefill time that a replica could take now without harm, in seconds; minus infinity when it
    can take nothing. Without running streams, or where chunks go beside them, the less backlog the better."""
    view, sent, identity = record.view, record.on_its_way, record.identity
    waiting = view.waiting + sent.sequences
    taken = view.running + waiting
    if waiting >= identity.max_waiting:
        return -math.inf
    if taken > 0 and (record.free_blocks <= 0 or (view.role is not _PREFILL and taken >= identity.max_running)):
        return -math.inf
    slack_s = allowed_slack_s(view, level) if view.role is _ALTERNATING else None
    return (NO_STREAM_S if slack_s is None else slack_s) - sent.backlog_s


def _keys_of(record: ReplicaRecord, level: float | None) -> _Keys:
    """Among replicas with the same room the one with the shorter decode step is first."""
    name = record.replica_id
    view, backlog_s = record.view, record.on_its_way.backlog_s
    if record.draining or record.becomes is not None:
        return _Keys(view.role, (math.inf, view.decode_step_s, name), (math.inf, backlog_s, name), view.cost)
    roomy = (-room_s(record, level), view.decode_step_s, name)
    return _Keys(view.role, roomy, (record.forced_at, backlog_s, name), view.cost)


def _open(entries: list[_Entry], is_open: Callable[[str], bool]) -> Iterator[str]:
    return (entry[2] for entry in entries if is_open(entry[2]))


def _note(macro: MacroInstance | None, found: list[MacroInstance]) -> None:
    if macro is not None and macro not in found:
        found.append(macro)


def _name(entry: _Entry) -> str:
    return entry[2]


def _move(entries: list[_Entry], old: _Entry, new: _Entry) -> None:
    if new != old:
        _take_out(entries, old)
        insort(entries, new)


def _take_out(entries: list[_Entry], entry: _Entry) -> None:
    at = bisect_left(entries, entry)
    assert entries[at] == entry
    del entries[at]
