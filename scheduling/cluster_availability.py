"""Which layouts a fleet can serve at all, whatever its load: what is refused at once, and whether it is ready."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set

from contracts.cluster_io import ClientRequestArrived
from contracts.errors import InvalidRequest
from contracts.phase import Layout, Role
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import POOLS, WHOLE, ReplicaRecord
from scheduling.config import ClusterCoreConfig

NO_REPLICA = "no live replica takes requests"
WhyClosed = Callable[[ReplicaRecord], str | None]


def draining(record: ReplicaRecord) -> str | None:
    """Closed for good, or None: a stale view may be followed by a fresh one."""
    return "draining" if record.draining else None


def demanded_layout(layout: Layout | None, config: ClusterCoreConfig) -> Layout | None:
    """The layout that must serve a request: its own demand, else the deployment's; None leaves it free."""
    if layout is not None:
        return layout
    return None if config.layout == "auto" else Layout(config.layout)


def may_fall_back(asked: ClientRequestArrived, config: ClusterCoreConfig) -> bool:
    """Whether another layout may serve the request when the one demanded, or a hand-off, cannot be had."""
    return (asked.on_unavailable or config.on_unavailable) == "colocate"


def why_unservable(fleet: Fleet, layout: Layout | None, falls_back: bool, why_closed: WhyClosed) -> str | None:
    """Why no request could be served now with that demand, or None. `why_closed` judges the single replica."""
    if falls_back and any(why_closed(record) is None for record in fleet):
        return None
    judged = [(record, why_closed(record)) for record in fleet]
    open_now = [record for record, why in judged if why is None]
    if not judged:
        return "no live replica"
    if not open_now:
        return "; ".join(f"{record.replica_id}: {why}" for record, why in judged)
    roles = {record.view.role for record in open_now}
    lacking = why_roles_cannot_serve(roles, layout)
    if lacking is not None or layout in {Layout.PHASED, Layout.COLOCATED} or (layout is None and roles & WHOLE):
        return lacking
    return _why_no_pair(fleet, open_now)


def why_roles_cannot_serve(roles: Set[Role], layout: Layout | None) -> str | None:
    """Which role is wanting for that demand where nothing may fall back, or None."""
    if layout is Layout.PHASED:
        return None if Role.ALTERNATING in roles else "no alternating replica takes requests"
    if layout is Layout.COLOCATED:
        return None if roles - {Role.ALTERNATING} else "no mixed replica takes requests"
    if (layout is None and roles & WHOLE) or roles >= POOLS:
        return None
    return f"no {'decode' if Role.PREFILL in roles else 'prefill'} replica takes requests"


def why_request_unservable(fleet: Fleet, asked: ClientRequestArrived, config: ClusterCoreConfig) -> str | None:
    """Why waiting cannot help this request, or None: as `why_unservable`, among the replicas that could hold it."""

    def why_closed(record: ReplicaRecord) -> str | None:
        return draining(record) or _why_no_room_ever(asked, record)

    layout = demanded_layout(asked.layout, config)
    return why_unservable(fleet, layout, may_fall_back(asked, config), why_closed)


def still_connecting(fleet: Fleet, why_closed: WhyClosed) -> str | None:
    """Which first link a fleet of nothing but pools still waits for, or None: its first request shall not pay for it.

    Ends with the giver's first word about a link, good or bad. What happens later is no reason to turn clients away.
    """
    open_now = [record for record in fleet if why_closed(record) is None]
    if any(record.serves_whole for record in open_now):
        return None
    givers = [record for record in open_now if record.view.role is Role.PREFILL]
    takers = [record for record in open_now if record.view.role is Role.DECODE]
    if not givers or not takers or any(giver.links.get(t.replica_id) for giver in givers for t in takers):
        return None
    return f"{givers[0].replica_id} is still connecting to {takers[0].replica_id}"


def _why_no_pair(fleet: Fleet, open_now: list[ReplicaRecord]) -> str | None:
    """Why no two replicas could hand over, or None."""
    givers = [record for record in open_now if record.view.role is Role.PREFILL]
    takers = {record.replica_id: record for record in open_now if record.view.role is Role.DECODE}
    if not givers or not takers:
        return f"no {'decode' if givers else 'prefill'} replica takes requests"
    reasons: list[str] = []
    for giver in givers:
        for taker_id, taker in takers.items():
            link = giver.links.get(taker_id)
            if link is not None and link.why_not is None and link.peer_incarnation == taker.identity.incarnation:
                return None
            if len(reasons) < 4:
                why = "not connected yet" if link is None else link.why_not or "connected to an earlier process"
                reasons.append(f"{giver.replica_id}->{taker_id}: {why}")
    return "no usable link: " + "; ".join(reasons)


def most_at_once(ways: Sequence[tuple[int, int]]) -> tuple[int, int] | None:
    """The most KV tokens, and the most sequences, that one of `ways_to_serve` offers; None when there is no way."""
    return (max(way[0] for way in ways), max(way[1] for way in ways)) if ways else None


def why_too_large(asked: ClientRequestArrived, most: tuple[int, int] | None) -> InvalidRequest | None:
    """Why no live replica, or no pair of them, could ever take the request, or None. `most` as `most_at_once` says."""
    if most is None:
        return None
    capacity, room = most
    if asked.prompt_tokens + 1 > capacity:
        message = f"prompt of {asked.prompt_tokens} tokens exceeds the largest KV cache of {capacity} tokens"
        return InvalidRequest(message, param="prompt")
    if asked.num_sequences > room:
        message = f"{asked.num_sequences} choices for one prompt; no replica takes more than {room} at once"
        return InvalidRequest(message, param="n")
    return None


def ways_to_serve(fleet: Fleet, layout: Layout | None, falls_back: bool) -> list[tuple[int, int]]:
    """(KV tokens, sequences) that each way to serve a request offers: one replica, or a pair that both must take it.

    A layout that cannot be kept to now is no way; which ones are is `why_unservable`'s to say.
    """
    able = [record for record in fleet if not record.draining]
    ways = [_offer(record) for record in able if falls_back or _serves_alone(record, layout)]
    if layout in {None, Layout.DISAGGREGATED}:
        givers = [_offer(record) for record in able if record.view.role is Role.PREFILL]
        takers = [_offer(record) for record in able if record.view.role is Role.DECODE]
        if givers and takers:
            tokens, sequences = (min(max(side[i] for side in ends) for ends in (givers, takers)) for i in (0, 1))
            ways.append((tokens, sequences))
    return ways


def _serves_alone(record: ReplicaRecord, layout: Layout | None) -> bool:
    """Whether a replica may serve a request with that demand as a whole, without a fallback."""
    match layout:
        case None:
            return record.serves_whole
        case Layout.PHASED:
            return record.view.role is Role.ALTERNATING
        case Layout.COLOCATED:
            return record.view.role is not Role.ALTERNATING
        case Layout.DISAGGREGATED:
            return False


def _offer(record: ReplicaRecord) -> tuple[int, int]:
    return record.view.num_blocks * record.view.block_size, record.identity.max_waiting


def _why_no_room_ever(asked: ClientRequestArrived, record: ReplicaRecord) -> str | None:
    """Why the request has no room on a replica even while it is empty, or None."""
    tokens, sequences = _offer(record)
    if asked.prompt_tokens + 1 > tokens:
        return f"prompt of {asked.prompt_tokens} tokens over its KV cache of {tokens}"
    if asked.num_sequences > sequences:
        return f"{asked.num_sequences} sequences over its waiting room of {sequences}"
    return None


def why_not_ready(fleet: Fleet, config: ClusterCoreConfig, now: float) -> str | None:
    """None when a request could be served at `now` under the deployment's settings, else why not."""

    def closed(record: ReplicaRecord) -> str | None:
        return fleet.closed_reason(record, now)

    falls_back = config.on_unavailable == "colocate"
    layout = demanded_layout(None, config)
    return why_unservable(fleet, layout, falls_back, closed) or still_connecting(fleet, closed)
