"""Prefill leases of the alternating replicas: who may prefill, until when."""

from __future__ import annotations

from contracts.cluster_io import ClusterAction, GrantLease, RevokeLease
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import ReplicaRecord
from scheduling.config import ClusterCoreConfig


def grant(record: ReplicaRecord, now: float, config: ClusterCoreConfig) -> GrantLease:
    """A full lease from now on."""
    record.lease_until = now + config.lease_s
    return GrantLease(record.replica_id, config.lease_s)


def renew_leases(fleet: Fleet, now: float, config: ClusterCoreConfig) -> list[ClusterAction]:
    """Extend and withdraw leases so that they are held by exactly these alternating replicas:

    - the one the rolling pointer stands on, so that one is always open for prefill;
    - any that still has prompts to prefill: it finishes its window after the pointer moved on, and a preempted
      sequence is recomputed without waiting for the pointer to come round.

    A lease is renewed when less than half of it is left. A lost router thus leaves its replicas decoding.
    """
    actions: list[ClusterAction] = []
    for record in fleet.alternating:
        wanted = record.replica_id == fleet.pointer or record.has_prefill_work
        left_s = 0.0 if record.lease_until is None else record.lease_until - now
        if wanted and left_s < config.lease_s / 2:
            actions.append(grant(record, now, config))
        elif not wanted and record.lease_until is not None:
            if left_s > 0:
                actions.append(RevokeLease(record.replica_id))
            record.lease_until = None
    return actions
