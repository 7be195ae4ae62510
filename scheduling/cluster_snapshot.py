"""What the router shows about the fleet: values for `/decisions` and metrics."""

from __future__ import annotations

import heapq

import msgspec

from contracts.handoff import LinkView
from contracts.phase import Role
from contracts.views import ReplicaView
from scheduling.cluster_accuracy import LayoutAccuracy
from scheduling.cluster_placement import Placement
from scheduling.cluster_replica import ReplicaRecord
from scheduling.fair_share import jain_index
from scheduling.fleet_planner import FleetPlanner
from scheduling.link_math import cautious_rate

KEYS_SHOWN = 100


class ReplicaSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One live replica. `closed` says why it takes no new request, else None; `backlog_s` counts what is on its way.

    `wanted_role` is the one it has or is about to have; `pinned`: an operator chose it.
    """

    replica_id: str
    incarnation: str
    view: ReplicaView
    view_age_s: float
    closed: str | None
    open_for_prefill: bool
    lease_left_s: float
    macro_instance: str | None
    wanted_role: Role
    pinned: bool
    placed: int
    unacked: int
    backlog_s: float


class MacroInstanceSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One macro instance: its replicas in the order of their turns, whose turn it is, and how long it is there."""

    name: str
    members: tuple[str, ...]
    pointer: str | None
    age_s: float


class ClusterCounters(msgspec.Struct, frozen=True, kw_only=True):
    """Totals since start. `placed_anew` counts repeated placements after a loss or a refusal, `resumed` those of
    requests that streamed already; `moved` streams went on elsewhere because their replica is to prefill. `colocated`,
    `phased` and `disaggregated` count placements by layout, `fallbacks` those where the layout demanded, or a hand-off,
    could not be had. `handoff_failures` count hand-offs given up.
    """

    arrived: int = 0
    dispatched: int = 0
    best_effort: int = 0
    placed_anew: int = 0
    resumed: int = 0
    moved: int = 0
    colocated: int = 0
    phased: int = 0
    disaggregated: int = 0
    fallbacks: int = 0
    handoff_failures: int = 0
    refused: int = 0
    cancelled: int = 0
    ended: int = 0


class LinkSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """One link from a prefill replica. `why_not` says why it is not used, else None; `counted_on_bytes_per_s` is what
    plans reckon with, `age_s` counts from the last measurement to now."""

    prefill_replica_id: str
    link: LinkView
    why_not: str | None
    counted_on_bytes_per_s: float
    age_s: float


class RoleLoad(msgspec.Struct, frozen=True, kw_only=True):
    """The replicas of one role together; `open_now` of them take requests."""

    role: Role
    replicas: int
    open_now: int
    running: int
    waiting: int
    backlog_s: float
    free_blocks: int


class PlannerSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """What the fleet planner found last, in requests per second; None where nothing was asked for. `goal` is the mix
    that the fleet is being moved towards; `utilisation` the demand's share of what the present mix carries."""

    enabled: bool = False
    goal: str | None = None
    demand_per_s: float | None = None
    carries_per_s: float | None = None
    utilisation: float | None = None


class KeyShare(msgspec.Struct, frozen=True, kw_only=True):
    """One key since its account was opened: seconds of service, unfinished requests, predicted seconds of prefill that
    are placed and not done, requests that ended, and those of them that met both targets."""

    key: str
    weight: float
    served_s: float
    unfinished: int
    backlog_s: float
    ended: int
    attained: int


class FairnessSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """How service is shared. The indices are Jain's, over the keys known: of seconds served over weight, and of the
    share of requests that met both targets. `keys` holds the `KEYS_SHOWN` served most. `longest_wait_s`: from arrival
    to the first token, or to the end without one."""

    num_keys: int = 0
    jain_served: float = 1.0
    jain_attained: float = 1.0
    longest_wait_s: float = 0.0
    keys: tuple[KeyShare, ...] = ()


class ClusterSnapshot(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet at one moment. `pending_prefill_s` is the predicted prefill time of all pending requests."""

    replicas: tuple[ReplicaSnapshot, ...]
    pending: int
    pending_prefill_s: float
    oldest_pending_s: float
    counters: ClusterCounters
    macro_instances: tuple[MacroInstanceSnapshot, ...] = ()
    links: tuple[LinkSnapshot, ...] = ()
    roles: tuple[RoleLoad, ...] = ()
    accuracy: tuple[LayoutAccuracy, ...] = ()
    planner: PlannerSnapshot = PlannerSnapshot()
    fairness: FairnessSnapshot = FairnessSnapshot()


def take_snapshot(place: Placement, planner: FleetPlanner, now: float) -> ClusterSnapshot:
    """What `place` and the planner look like at `now`."""
    arrivals = [record.arrived_at for record in place.pending]
    replicas = tuple(_replica_snapshot(place, record, now) for record in place.fleet)
    return ClusterSnapshot(
        replicas=replicas,
        pending=len(place.pending),
        pending_prefill_s=place.pending.prefill_s,
        oldest_pending_s=now - min(arrivals, default=now),
        counters=ClusterCounters(**place.counts),
        macro_instances=tuple(
            MacroInstanceSnapshot(
                name=macro.name, members=tuple(macro.members), pointer=macro.pointer, age_s=now - macro.since
            )
            for macro in place.fleet.macros
        ),
        links=tuple(
            _link_snapshot(place, record, link, now)
            for record in place.fleet
            if record.view.role is Role.PREFILL
            for link in record.view.links
        ),
        roles=_role_loads(replicas),
        accuracy=place.accuracy.by_layout(),
        planner=PlannerSnapshot(
            enabled=place.config.planner.enabled,
            goal=None if planner.goal is None else planner.goal.in_words(),
            demand_per_s=None if planner.demand is None else planner.demand.rate,
            carries_per_s=planner.capacity,
            utilisation=planner.utilisation,
        ),
        fairness=_fairness(place),
    )


def _fairness(place: Placement) -> FairnessSnapshot:
    accounts = list(place.shares.accounts.values())
    ended = [account for account in accounts if account.ended]
    most = heapq.nlargest(KEYS_SHOWN, accounts, key=lambda account: account.served_s)
    shown = KeyShare.__struct_fields__
    return FairnessSnapshot(
        num_keys=len(accounts),
        jain_served=jain_index(account.served_s / account.weight for account in ended),
        jain_attained=jain_index(account.attained / account.ended for account in ended),
        longest_wait_s=place.shares.longest_wait_s,
        keys=tuple(KeyShare(**{name: getattr(account, name) for name in shown}) for account in most),
    )


def _link_snapshot(place: Placement, giver: ReplicaRecord, link: LinkView, now: float) -> LinkSnapshot:
    config, taker = place.config, place.fleet.get(link.peer_id)
    why_not = link.why_not
    if why_not is None and taker is None:
        why_not = "no such replica lives"
    elif why_not is None and taker is not None and taker.identity.incarnation != link.peer_incarnation:
        why_not = "connected to an earlier process"
    age_s = link.age_s + now - giver.view_at
    rate = cautious_rate(link, age_s, config.link_caution, config.link_spread_per_s)
    return LinkSnapshot(
        prefill_replica_id=giver.replica_id,
        link=link,
        why_not=why_not,
        counted_on_bytes_per_s=config.link_unmeasured_bytes_per_s if rate is None else rate,
        age_s=age_s,
    )


def _role_loads(replicas: tuple[ReplicaSnapshot, ...]) -> tuple[RoleLoad, ...]:
    loads = []
    for role in Role:
        members = [replica for replica in replicas if replica.view.role is role]
        if members:
            loads.append(
                RoleLoad(
                    role=role,
                    replicas=len(members),
                    open_now=sum(replica.closed is None for replica in members),
                    running=sum(replica.view.running for replica in members),
                    waiting=sum(replica.view.waiting for replica in members),
                    backlog_s=sum(replica.backlog_s for replica in members),
                    free_blocks=sum(replica.view.free_blocks for replica in members),
                )
            )
    return tuple(loads)


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
        macro_instance=record.macro_instance,
        wanted_role=place.roles.wanted(record),
        pinned=place.roles.is_pinned(record.replica_id),
        placed=len(record.placed),
        unacked=len(record.unacked),
        backlog_s=record.backlog_s,
    )
