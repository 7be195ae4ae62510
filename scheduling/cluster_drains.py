"""Replicas that are asked to leave: no new work from the request on, and they are told until their view says it."""

from __future__ import annotations

from contracts.cluster_io import ClusterAction, DrainReplica
from scheduling.cluster_placement import Placement


def request_drain(place: Placement, replica_id: str) -> None:
    """A live replica is to leave once what runs there has ended. Harmless when it leaves already."""
    record = place.fleet.get(replica_id)
    if record is None or record.draining:
        return
    reason = f"{replica_id} was asked to leave, with {len(record.placed)} requests to finish"
    place.fleet_decisions.note(place.now, "drain", reason, replica_id, requests=len(record.placed))
    place.fleet.drain(record, place.now)
    place.actions.append(DrainReplica(replica_id))


def repeated_drains(place: Placement) -> list[ClusterAction]:
    """What was said and perhaps not heard."""
    if not place.fleet.any_draining:
        return []
    asked = (record for record in place.fleet if record.drain_requested and not record.view.draining)
    return [DrainReplica(record.replica_id) for record in asked]
