"""What happens to a fleet while it runs, as settings: failures, drains, new replicas, roles, links."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Role
from simulator.bounds import COUNTLESS, LONGEST_S, MOST_BYTES_S, bound

_KIND = "kind"
_MOST = {"bytes_per_s": MOST_BYTES_S}


class _Change(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    at_s: float

    def __post_init__(self) -> None:
        """Raises `ConfigError`, naming the setting."""
        for name in self.__struct_fields__:
            if name.endswith("_s"):
                bound(f"changes.{name}", getattr(self, name), most=_MOST.get(name, LONGEST_S))


class Kill(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="kill", tag_field=_KIND):
    """The process dies; another one starts after `restart_s` (0: never)."""

    replica_id: str
    restart_s: float = 0.0


class Freeze(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="freeze", tag_field=_KIND):
    """The process and its network card stand still for so long."""

    replica_id: str
    for_s: float


class Drain(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="drain", tag_field=_KIND):
    """An operator wants the replica to leave."""

    replica_id: str


class Add(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="add", tag_field=_KIND):
    """`count` more replicas of the fleet's group number `group`, with the role they have there or another."""

    count: int = 1
    group: int = 0
    role: Role | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        bound("changes.count", self.count, 1, COUNTLESS)


class SetRoleTo(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="role", tag_field=_KIND):
    """An operator wants the replica to have this role."""

    replica_id: str
    role: Role
    pinned: bool = True


class SetLink(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="link", tag_field=_KIND):
    """The rates of a host or of all (`replica_id` empty), from then on, in bytes per second; 0: nothing goes."""

    bytes_per_s: float
    replica_id: str = ""


class RestartRouter(_Change, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="router", tag_field=_KIND):
    """The router's process dies, with every answer under way; another one serves after `restart_s`."""

    restart_s: float = 1.0


_FEW = 8
"""Names that a message lists."""


def check_names(changes: Sequence[Change], groups: Sequence[tuple[str, int]], growing: str = "") -> None:
    """Every replica that a change names is there at its moment. `groups` are names and counts of the fleet's, whose
    replicas are called `<name>-0`, `<name>-1` ...; those of `growing` come at moments that nobody knows beforehand.

    Raises `ConfigError`.
    """
    counts = dict(groups)
    for change in sorted(changes, key=lambda one: one.at_s):  # of one moment in the order given, as they are performed
        if isinstance(change, Add):
            counts[groups[change.group][0]] += change.count
            continue
        name = getattr(change, "replica_id", "")
        prefix, _, number = name.rpartition("-")
        there = number.isdecimal() and str(int(number)) == number and int(number) < counts.get(prefix, 0)
        if name and not there and not (growing and prefix == growing):
            known = [f"{group}-{one}" for group, count in counts.items() for one in range(min(count, _FEW + 1))]
            told = ", ".join(known[:_FEW]) + (", ..." if len(known) > _FEW else "")
            raise ConfigError(
                f"changes: there is no replica {name} at {change.at_s:g} s; there are {told}", param="changes"
            )


Change = Kill | Freeze | Drain | Add | SetRoleTo | SetLink | RestartRouter
