"""Who leads: what to write into a Lease, and until when a lease that was written may be relied upon. Pure.

Two rules make sure that never two lead, whatever the API server and the clocks of other machines do. A lease of
another counts from when it was *seen* to change, by our own clock; times that others wrote are compared for equality
only. And our own counts from *before* the call that renewed it, so it ends here before anybody else may take it.
Every write carries the version that it is based on, so that of two that find it free one is refused.
"""

from __future__ import annotations

import datetime
import math
from dataclasses import dataclass

import msgspec

from k8s.objects import Lease, LeaseSpec


@dataclass(slots=True)
class LeaseView:
    """What one candidate has seen. `holder` is the last one known, for the record."""

    identity: str
    duration_s: float
    holder: str = ""
    _mark: tuple[str | None, str | None] | None = None
    _seen_at: float = 0.0

    def may_take(self, lease: Lease, now: float) -> bool:
        """Whether the lease is ours, free, or has been still for as long as its holder said. `now` is monotonic."""
        spec = lease.spec
        self.holder = spec.holder_identity or ""
        if self.holder in ("", self.identity):
            return True
        mark = (spec.holder_identity, spec.renew_time)
        if mark != self._mark:
            self._mark, self._seen_at = mark, now
        return now >= self._seen_at + max(float(spec.lease_duration_seconds or 0), self.duration_s)

    def taken(self, lease: Lease | None, wall: datetime.datetime) -> LeaseSpec:
        """What to write in order to hold it; `lease` None where there is none yet. `wall` is for people to read."""
        stamp = micro_time(wall)
        before = LeaseSpec() if lease is None else lease.spec
        held = before.holder_identity == self.identity
        transitions = before.lease_transitions or 0
        return LeaseSpec(
            holder_identity=self.identity,
            lease_duration_seconds=math.ceil(self.duration_s),
            acquire_time=before.acquire_time if held and before.acquire_time else stamp,
            renew_time=stamp,
            lease_transitions=transitions if held or lease is None else transitions + 1,
        )


def released(lease: Lease, wall: datetime.datetime) -> LeaseSpec:
    """What to write in order to give it away at once."""
    return msgspec.structs.replace(
        lease.spec, holder_identity="", lease_duration_seconds=1, renew_time=micro_time(wall)
    )


def micro_time(wall: datetime.datetime) -> str:
    """As the API wants it: UTC with all six digits (it refuses what Python writes where they are all 0)."""
    return wall.astimezone(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def must_stop(renewed_at: float, now: float, deadline_s: float) -> bool:
    """Whether a leader that renewed last at `renewed_at` has to stop now. Both monotonic."""
    return now >= renewed_at + deadline_s
