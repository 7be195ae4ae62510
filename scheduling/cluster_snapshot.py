"""What the router shows about the fleet: values for `/decisions` and metrics."""

from __future__ import annotations

import msgspec

from contracts.views import ReplicaView
from scheduling.cluster_placement import Placement
from scheduling.cluster_replica import ReplicaRecord


class ReplicaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One live replica. `closed` says why it takes no new request, else None; `backlog_s` counts what is on its way."""

    replica_id: str
    incarnation: str
    view: ReplicaView
    view_age_s: float
    closed: str | None
    open_for_prefill: bool
    lease_left_s: float
    placed: int
    unacked: int
    backlog_s: float


class ClusterCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since start. `placed_anew` counts repeated placements after a loss or a refusal, `resumed` those of
    requests that streamed already. `colocated`, `phased` and `disaggregated` count placements by layout, `fallbacks`
    those where the layout demanded, or a hand-off, could not be had. `handoff_failures` count hand-offs given up.
    """

    arrived: int = 0
    dispatched: int = 0
    best_effort: int = 0
    placed_anew: int = 0
    resumed: int = 0
    colocated: int = 0
    phased: int = 0
    disaggregated: int = 0
    fallbacks: int = 0
    handoff_failures: int = 0
    refused: int = 0
    cancelled: int = 0
    ended: int = 0


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment. `pending_prefill_s` is the predicted prefill time of all pending requests."""

    replicas: tuple[ReplicaSnapshot, ...]
    pending: int
    pending_prefill_s: float
    oldest_pending_s: float
    pointer: str | None
    counters: ClusterCounters


def take_snapshot(place: Placement, now: float) -> ClusterSnapshot:
    """What `place` looks like at `now`."""
    arrivals = [record.arrived_at for record in place.pending]
    return ClusterSnapshot(
        replicas=tuple(_replica_snapshot(place, record, now) for record in place.fleet),
        pending=len(place.pending),
        pending_prefill_s=place.pending.prefill_s,
        oldest_pending_s=now - min(arrivals, default=now),
        pointer=place.fleet.pointer,
        counters=ClusterCounters(**place.counts),
    )


def _replica_snapshot(place: Placement, record: ReplicaRecord, now: float) -> ReplicaSnapshot:
    lease_left_s = 0.0 if record.lease_until is None else max(0.0, record.lease_until - now)
    return ReplicaSnapshot(
        replica_id=record.replica_id,
        incarnation=record.identity.incarnation,
        view=record.view,
        view_age_s=now - record.view_at,
        closed=place.fleet.closed_reason(record, now),
        open_for_prefill=lease_left_s > 0,
        lease_left_s=lease_left_s,
        placed=len(record.placed),
        unacked=len(record.unacked),
        backlog_s=record.backlog_s,
    )
