"""Role mixes of a fleet, and which of them carries most: whole-serving replicas, P:D pools, or both side by side."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from contracts.phase import Layout, Role
from scheduling.fleet_capacity import RoleRates

FINE = 256
"""Up to so many replicas every size of the pools is looked at; in larger fleets multiples of a step."""

SIDE_BY_SIDE = 0.85
"""Of what pools and whole-serving replicas carry each for itself a fleet of both carries less: requests are dealt out
one by one, and one kind is full while the other is not."""


class Mix(msgspec.Struct, frozen=True, kw_only=True):
    """How many replicas have each role."""

    alternating: int = 0
    mixed: int = 0
    prefill: int = 0
    decode: int = 0

    @classmethod
    def of(cls, roles: list[Role]) -> Mix:
        """The mix of these replicas."""
        return cls(**{role.value: roles.count(role) for role in Role})

    def of_role(self, role: Role) -> int:
        """The replicas of one role."""
        count: int = getattr(self, role.value)
        return count

    @property
    def total(self) -> int:
        """All replicas."""
        return self.alternating + self.mixed + self.prefill + self.decode

    def in_words(self) -> str:
        """For reasons: '2 prefill + 2 decode'."""
        return " + ".join(f"{self.of_role(role)} {role}" for role in Role if self.of_role(role)) or "no replica"


class Bounds(msgspec.Struct, frozen=True, kw_only=True):
    """What a mix must keep to: `pinned` replicas stay as they are, `poolable` can hand over, `layout` is demanded."""

    total: int
    poolable: int
    pinned: Mix = Mix()
    layout: Layout | None = None


def carried(mix: Mix, rates: RoleRates) -> float:
    """Requests per second that a mix sustains: pools at the rate of the slower one, the rest added, of both together
    `SIDE_BY_SIDE`."""
    pools = min(mix.prefill * rates.prefill, mix.decode * rates.decode)
    whole = mix.alternating * rates.alternating + mix.mixed * rates.mixed
    return SIDE_BY_SIDE * (whole + pools) if whole > 0.0 and pools > 0.0 else whole + pools


def best_mix(present: Mix, rates: RoleRates, bounds: Bounds) -> Mix:
    """The mix that carries most; of those within a hundredth of it the one with the fewest replicas to change."""
    best, most = present, carried(present, rates)
    for mix in mixes(present, rates, bounds):
        rate = carried(mix, rates)
        if rate > most * 1.01 or (rate >= most * 0.99 and _changes(present, mix) < _changes(present, best)):
            best, most = mix, max(rate, most)
    return best


def mixes(present: Mix, rates: RoleRates, bounds: Bounds) -> Iterator[Mix]:
    """The mixes within bounds that can be the best: one kind of whole-serving replicas beside pools of every size, cut
    where both carry about the same, or as the present ones are. Pools are both there or both not."""
    total, pinned = bounds.total, bounds.pinned
    step = 1 if total <= FINE else -(-total // FINE)
    for whole_role in _whole_roles(bounds.layout):
        other = Role.MIXED if whole_role is Role.ALTERNATING else Role.ALTERNATING
        for pooled in _sizes(total - pinned.alternating - pinned.mixed, step):
            whole = total - pooled - pinned.of_role(other)
            if pooled > bounds.poolable or whole < 0 or not _demanded(bounds.layout, pooled, whole):
                continue
            counts = {whole_role.value: whole, other.value: pinned.of_role(other)}
            for prefill in _cuts(pooled, present, rates, pinned):
                mix = Mix(prefill=prefill, decode=pooled - prefill, **counts)
                if _keeps(mix, pinned) and bool(mix.prefill) == bool(mix.decode):
                    yield mix


def _cuts(pooled: int, present: Mix, rates: RoleRates, pinned: Mix) -> set[int]:
    """How many of `pooled` replicas may prefill: min(p * P, d * D) peaks where both sides carry the same."""
    if pooled < 2:
        return {0} if pooled == 0 else set()
    both = rates.prefill + rates.decode
    even = pooled / 2 if both <= 0.0 else pooled * rates.decode / both
    cuts = {math.floor(even), math.ceil(even), present.prefill, pooled - present.decode}
    least, most = max(1, pinned.prefill), pooled - max(1, pinned.decode)
    return {min(max(cut, least), most) for cut in cuts} if least <= most else set()


def _whole_roles(layout: Layout | None) -> tuple[Role, ...]:
    if layout is Layout.PHASED:
        return (Role.ALTERNATING,)
    if layout is Layout.COLOCATED:
        return (Role.MIXED,)
    return (Role.ALTERNATING, Role.MIXED)


def _sizes(most: int, step: int) -> Iterator[int]:
    yield from range(0, most, step)
    yield most


def _demanded(layout: Layout | None, pooled: int, whole: int) -> bool:
    """Whether the layout that the deployment demands of every request can be had."""
    if layout is Layout.DISAGGREGATED:
        return pooled > 0
    return layout is None or whole > 0


def _keeps(mix: Mix, pinned: Mix) -> bool:
    return all(mix.of_role(role) >= pinned.of_role(role) for role in Role)


def _changes(before: Mix, after: Mix) -> int:
    return sum(max(0, after.of_role(role) - before.of_role(role)) for role in Role)
