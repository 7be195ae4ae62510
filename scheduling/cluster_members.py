"""Replicas that come, report and go, and what that means for the requests on them and for those that wait."""

from __future__ import annotations

from contracts.cluster_io import ReplicaJoined, ReplicaLost, ViewReported
from contracts.views import ReplicaView
from scheduling.cluster_availability import NO_REPLICA
from scheduling.cluster_placement import Placement
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord, RequestStatus


def replica_joined(place: Placement, event: ReplicaJoined) -> None:
    """A new replica, a reconnect (same incarnation: its requests go on), or a new process under an old name."""
    known = place.fleet.get(event.identity.replica_id)
    if known is not None and known.identity.incarnation == event.identity.incarnation:
        place.fleet.rejoin(known, event.identity)
        _view_came(place, known, event.view)
        place.actions += place.roles.joined(known, place.now)
        return
    if known is not None:
        place.fleet.drop(known.replica_id, place.now)
        place.prefixes.forget(known.replica_id)
    place.fleet.join(event.identity, event.view, place.now)
    place.actions += place.roles.joined(place.fleet.get(event.identity.replica_id), place.now)
    if known is not None:
        _wind_up(place, known, "its process was replaced", {})


def replica_lost(place: Placement, event: ReplicaLost) -> None:
    """A replica is gone with all that was on it. Harmless for one that is not known."""
    known = place.fleet.drop(event.replica_id, place.now)
    if known is not None:
        place.prefixes.forget(event.replica_id)
        place.roles.lost(event.replica_id, place.now)
        _wind_up(place, known, event.reason, event.tokens_sent)
        refuse_unservable(place)


def view_reported(place: Placement, event: ViewReported) -> None:
    """A heartbeat; one of an earlier process changes nothing."""
    known = place.fleet.get(event.view.replica_id)
    if known is not None and known.identity.incarnation == event.view.incarnation:
        before = place.fleet.changes
        _view_came(place, known, event.view)
        if place.fleet.changes != before:
            refuse_unservable(place)


def _view_came(place: Placement, replica: ReplicaRecord, view: ReplicaView) -> None:
    """Take a replica's newer view; requests that it refused may be offered to it again."""
    place.fleet.report(replica, view, place.now)
    place.roles.view_came(replica, place.now)
    for record in place.pending:
        if replica.replica_id in record.avoid:
            record.avoid -= {replica.replica_id}


def refuse_unservable(place: Placement) -> None:
    """Those that wait for what no replica left can give are told at once."""
    for record in place.pending:
        why = place.why_unservable(record)
        if why is not None:
            place.refuse(record, place.unavailable(why if place.fleet.num_open else NO_REPLICA))


def is_final(place: Placement, record: RequestRecord, tokens_sent: int, broken: bool) -> bool:
    """Whether a request that loses its place must end, by policy. Notes what the client has of it."""
    streamed = record.tokens_sent > 0 or record.status is RequestStatus.STREAMING
    record.tokens_sent = max(record.tokens_sent, tokens_sent, int(streamed))
    return (streamed or broken) and place.config.on_handoff_failure == "fail"


def _wind_up(place: Placement, lost: ReplicaRecord, why: str, tokens_sent: dict[str, int]) -> None:
    """A replica was dropped from the fleet: requests on it are placed anew, by policy also those that stream."""
    for leg in list(lost.placed.values()):
        record = leg.record
        place.cancel(record, but=lost.replica_id)
        if is_final(place, record, tokens_sent.get(record.request_id, 0), broken=False):
            message = f"replica {lost.replica_id} was lost while it streamed the answer: {why}"
            place.refuse(record, place.unavailable(message))
        else:
            place.place_anew(record, place.unavailable(f"replica {lost.replica_id} is gone: {why}"))
