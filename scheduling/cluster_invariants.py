"""What must hold in a cluster core after every event. Used by property tests and at the end of system tests."""

from __future__ import annotations

from collections import Counter

from contracts.phase import Role
from scheduling.cluster_core import ClusterCore
from scheduling.cluster_placement import Placement
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord, RequestStatus
from scheduling.on_its_way import on_its_way


def check_cluster_invariants(core: ClusterCore) -> None:
    """Raises AssertionError, naming what is broken."""
    place = core.placement
    _check_requests(place)
    for replica in place.fleet:
        _check_replica(place, replica)
    assert not place.fleet.misplaced(), f"not where it should be: {place.fleet.misplaced()}"
    _check_pending(place)
    _check_macro_instances(place)
    ended = place.counts["refused"] + place.counts["cancelled"] + place.counts["ended"]
    assert place.counts["arrived"] == len(place.requests) + ended, "a request was lost or answered twice"


def assert_nothing_placed(core: ClusterCore) -> None:
    """Raises AssertionError unless every request has ended and nothing of any is left."""
    check_cluster_invariants(core)
    place = core.placement
    assert not place.requests, f"left: {sorted(place.requests)}"
    assert core.pending_count == 0, "a request is still pending"
    for replica in place.fleet:
        assert not replica.placed, f"{replica.replica_id} still counts {sorted(replica.placed)}"


def _check_requests(place: Placement) -> None:
    waiting = {record.request_id for record in place.pending}
    for request_id, record in place.requests.items():
        assert record.request_id == request_id
        assert record.status is not RequestStatus.ENDED, f"{request_id} has ended but is remembered"
        assert record.tries <= place.config.max_dispatches, f"{request_id} was sent out too often"
        if record.status is RequestStatus.PENDING:
            assert request_id in waiting, f"{request_id} is pending but not queued"
            assert record.replica_id is record.prefill_replica_id is None, f"{request_id} is pending on a replica"
        else:
            assert request_id not in waiting, f"{request_id} is queued and placed"
            _check_legs(place, record)


def _check_legs(place: Placement, record: RequestRecord) -> None:
    """Each leg stands on the account of a live replica, and on no other."""
    due = {record.replica_id}
    if record.prefill_replica_id is not None:
        assert record.prefill_replica_id != record.replica_id, f"{record.request_id}: both legs on one replica"
        if not record.prefill_finished:
            due.add(record.prefill_replica_id)
    found = {
        replica.replica_id
        for replica in place.fleet
        if (leg := replica.placed.get(record.request_id)) is not None and leg.record is record
    }
    assert found == due, f"{record.request_id} is on the accounts of {sorted(found)} and should be on {due}"


def _check_replica(place: Placement, replica: ReplicaRecord) -> None:
    name = replica.replica_id
    assert replica.backlog_s >= 0, f"{name}: negative backlog"
    for request_id, leg in replica.unacked.items():
        assert replica.placed.get(request_id) is leg, f"{name}: {request_id} unacked but not placed"
        seen = leg.unsent == 0 and leg.submit_index <= replica.view.acked_submit_index
        assert not seen, f"{name}: {request_id} counted twice"
    for request_id, leg in replica.placed.items():
        assert place.requests.get(request_id) is leg.record, f"{name}: {request_id} ended but still counted"
        assert 0 <= leg.submit_index <= replica.last_submit_index, f"{name}: submit index out of range"
        if leg.sent or leg.unsent:
            assert leg.record.prefill_replica_id == name, f"{name}: a prefill leg of {request_id} by mistake"
            assert len(leg.sent) + leg.unsent == leg.record.asked.num_sequences, f"{name}: {request_id} miscounted"
        else:
            assert leg.submit_index > 0, f"{name}: {request_id} was never sent"
    assert set(replica.window) <= set(replica.placed), f"{name}: its window holds requests that left"
    summed = on_its_way(replica.view, replica.unacked.values())
    assert replica.on_its_way == summed, f"{name}: what is on its way was kept too long"
    kept = replica.kept_load(place.now, replica.load_reserve)
    if kept is not None:
        assert abs(kept.backlog_s - replica.backlog_s) < 1e-9, f"{name}: a load was kept too long"


def _check_pending(place: Placement) -> None:
    config, count = place.config, len(place.pending)
    assert count <= config.max_pending, f"{count} pending requests"
    assert count <= 1 or place.pending.prefill_s <= config.max_pending_s + 1e-9, "too much prefill pending"


def _check_macro_instances(place: Placement) -> None:
    """Every alternating replica that is not draining is in exactly one macro instance, no other is in any; in each one
    it is the turn of a replica that takes work whenever any could, and that one is open for prefill."""
    fleet = place.fleet
    found = Counter(member for macro in fleet.macros for member in macro.members)
    due = {record.replica_id for record in fleet if record.view.role is Role.ALTERNATING and not record.draining}
    assert found == Counter(due), f"macro instances hold {sorted(found.elements())} and should hold {sorted(due)}"
    for macro in fleet.macros:
        assert macro.members == sorted(macro.members), f"{macro.name} is not in cyclic order"
        records = [record for record in map(fleet.get, macro.members) if record is not None]
        assert all(record.macro_instance == macro.name for record in records), f"{macro.name}: a member says otherwise"
        pointer = fleet.get(macro.pointer)
        assert pointer in records, f"{macro.name}: it is the turn of {macro.pointer}, which is elsewhere"
        if any(fleet.closed_reason(record, place.now) is None for record in records):
            closed = fleet.closed_reason(pointer, place.now)
            assert closed is None, f"{macro.name}: it is the turn of {macro.pointer}, which takes no work: {closed}"
        leased = pointer.lease_until is not None and pointer.lease_until > place.now
        assert leased, f"{macro.name}: it is the turn of {macro.pointer}, which has no lease"
    for record in fleet:
        assert record.macro_instance is None or record.replica_id in due, f"{record.replica_id} takes turns"
