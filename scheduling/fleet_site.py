"""What the fleet's replicas and links are like on average, as the planner reckons with them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import fmean, median

from contracts.handoff import LinkView
from contracts.phase import Role
from contracts.views import ReplicaView, StepCost
from scheduling.cluster_fleet import Fleet
from scheduling.cluster_replica import POOLS, ReplicaRecord
from scheduling.config import ClusterCoreConfig
from scheduling.fleet_capacity import Site
from scheduling.link_math import cautious_rate

LOOKED_AT = 2048
"""How many links are looked at at most: there are as many as pairs of replicas."""

FRESH_S = 2.0
COLLAPSED = 0.25
"""Links measured within the last seconds speak for all when they are slower by this factor: when the network changes,
the idle ones know last. Transfers side by side share a link, so a smaller difference tells nothing. Nor does the
spread of what was measured: estimates that contradict each other are of a link that is shared, not of one that fell."""

OF_BOUND = 0.25
"""Of a link whose transfers are overdue (age 0) only a bound is known, which falls as they go on: so much is counted
on. Waiting for the bound to come down would send everything that arrives meanwhile into the same queue."""


def site_of(members: Sequence[ReplicaRecord], fleet: Fleet, config: ClusterCoreConfig, now: float) -> Site | None:
    """The averages over these replicas, or None when there are none."""
    if not members:
        return None
    views = [record.view for record in members]
    layout = members[0].identity.fingerprint.layout
    return Site(
        cost=mean_cost(views),
        prefill_chunk=config.prefill_chunk,
        kv_tokens=sum(view.num_blocks * view.block_size for view in views) / len(views),
        max_running=sum(record.identity.max_running for record in members) / len(members),
        kv_bytes_per_token=layout.bytes_per_token,
        num_layers=layout.num_layers,
        link_bytes_per_s=link_rate(members, fleet, config, now),
    )


def decoding_now(views: Sequence[ReplicaView]) -> tuple[int, float]:
    """How many streams decode, and how long one of them waits for a token (harmonic mean: both together give the tokens
    per second). Sequences whose KV is still to come do not, nor do those on replicas that only prefill."""
    busy = [(view.running - view.receiving, view.decode_step_s) for view in views if view.decode_step_s > 0.0]
    streams = sum(running for running, _ in busy if running > 0)
    tokens_per_s = sum(running / step_s for running, step_s in busy if running > 0)
    return streams, (streams / tokens_per_s if tokens_per_s > 0.0 else 0.0)


def mean_cost(views: Sequence[ReplicaView]) -> StepCost:
    """Coefficient by coefficient, each of the replicas that do such work: what a stream costs is not known where next
    to none decodes, nor what a prompt costs where none is computed. A stream is a token of its step, too."""
    prefills = [view.cost for view in views if view.role is not Role.DECODE] or [view.cost for view in views]
    decodes = [view.cost for view in views if view.role is not Role.PREFILL] or [view.cost for view in views]
    a1 = fmean(cost.a1 for cost in prefills)
    return StepCost(
        a0=fmean(cost.a0 for cost in decodes),
        a1=a1,
        b0=fmean(cost.b0 for cost in prefills),
        b1=fmean(cost.b1 for cost in prefills),
        b2=fmean(cost.b2 for cost in decodes),
        b3=max(0.0, fmean(cost.a1 + cost.b3 for cost in decodes) - a1),
        margin_s=fmean(view.cost.margin_s for view in views),
    )


def link_rate(members: Sequence[ReplicaRecord], fleet: Fleet, config: ClusterCoreConfig, now: float) -> float | None:
    """What the faster links between these replicas can be counted on for, in bytes/s: the upper quartile, since
    transfers that meet at a receiver make links look slower than they are. Where all fresh ones have collapsed, their
    median; what the configuration says of links never measured when none was; None when no two replicas could hand
    over: no pools are built where not one link is up, though those that are there may still be connecting."""
    able = sum(bool(record.identity.data_endpoints) for record in members)
    if able < 2:
        return None
    pools = {record.view.role for record in members} >= POOLS
    rates, fresh = [], []
    up = pools
    for record, link in _links_up(members, fleet):
        up = True
        age_s = link.age_s + max(0.0, now - record.view_at)
        rate = cautious_rate(link, age_s, config.link_caution, config.link_spread_per_s)
        if rate is not None:
            rates.append(rate)
            if age_s <= FRESH_S and link.bytes_per_s is not None:
                is_bound = link.age_s == 0.0 and link.bytes_in_flight > 0
                fresh.append(link.bytes_per_s * (OF_BOUND if is_bound else 1.0))
    if rates:
        known = sorted(rates)[3 * len(rates) // 4]
        share = COLLAPSED if len(fresh) > 1 else COLLAPSED**2  # one link alone must say it clearly
        return median(fresh) if fresh and max(fresh) < share * known else known
    return config.link_unmeasured_bytes_per_s if up else None


def poolable(members: Sequence[ReplicaRecord], fleet: Fleet) -> int:
    """How many of these replicas may be in pools: those with a data plane; as long as no link between them is up, not
    more than there are in pools already, since nobody knows whether one ever comes up."""
    if any(True for _ in _links_up(members, fleet)):
        return sum(bool(record.identity.data_endpoints) for record in members)
    return sum(record.view.role in POOLS for record in members)


def _links_up(members: Sequence[ReplicaRecord], fleet: Fleet) -> Iterator[tuple[ReplicaRecord, LinkView]]:
    """The links over which something could be sent now, of each replica so many that `LOOKED_AT` is not exceeded."""
    each = max(1, LOOKED_AT // len(members))
    for index, record in enumerate(members):
        for link in _some(record.view.links, index * each, each):
            peer = fleet.get(link.peer_id)
            if link.why_not is None and peer is not None and peer.identity.incarnation == link.peer_incarnation:
                yield record, link


def _some(links: Sequence[LinkView], start: int, count: int) -> Sequence[LinkView]:
    """At most `count` of them, from a place on that differs from replica to replica."""
    if len(links) <= count:
        return links
    start %= len(links)
    return (*links[start : start + count], *links[: max(0, start + count - len(links))])
