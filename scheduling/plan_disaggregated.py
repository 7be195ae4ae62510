"""The disaggregated plan: prefill on one replica, decode on another, KV streamed between them.

The decode replica is picked by room (predicted decode step, then spare blocks), the prefill replica by TTFT among
those that have a usable link to it. All pairs of a small fleet are compared; in a large one the `FEW` roomiest decode
replicas, each with the first `FEW` prefill replicas linked to it in order of TTFT. That is O(P log P + D log D) for P
and D replicas, plus the links looked up in vain; never P x D predictions.

The switch wait (exposed transfer, then the step in flight at the decode replica) counts into the TTFT target, as it
does in the phased plan. Prefill elsewhere harms no running stream.

What the prefill replica has cached of the prompt it need not compute, what the decode replica has cached does not
cross. The decode replica with the longest cached prefix is among those looked at, however roomy it is.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from contracts.handoff import LinkView
from contracts.phase import Layout
from contracts.plan import FallbackKind
from scheduling.config import ClusterCoreConfig
from scheduling.link_math import cautious_rate, exposed_transfer_s, is_sustainable, queued_transfer_s
from scheduling.plan_inputs import Ask, Candidate, FleetLoads, Load, PlannedHandoff
from scheduling.plan_predict import decode_step_s, guarded_wait_s, meets_targets, prefill_on_s
from scheduling.plan_room import place_objection, prompt_fits

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_DISAGGREGATED = Layout.DISAGGREGATED
FEW = 3
ALL_PAIRS = 16
SPARED_PROMPTS = 1
"""A prompt in time whose hand-off its link does not sustain is sent to a prefill replica with at most so many others
waiting. One that will be late goes only where none waits: queued there, late ones would make all that follow late."""
ABOUT_THE_SAME = 1.25
"""Costs that differ by less are the same: rates and times are not known better, and whoever measured a little faster
would get every request until its streams miss their targets."""
SHARED = 0.5
"""Of a link's rate, what is measured of it while two senders share a receiver. What queues before a transfer is
predicted by itself: a pool is not taken for one that its links cannot sustain for that."""
JUST_REFUSED = "refused it just now"


class NoPair(msgspec.Struct, frozen=True):
    """Why there is no disaggregated plan. `unavailable`: of which kind where it is not for want of room, so that
    waiting may not help; else None."""

    reason: str
    unavailable: FallbackKind | None = None


def plan_disaggregated(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | NoPair:
    """The best pair with room: among those that meet both targets one of the cheapest, else the least late one."""
    for name, loads in (("prefill", fleet.prefill), ("decode", fleet.decode)):
        if not any(why_never(ask, load) is None for load in loads):
            told = "; ".join(f"{load.replica_id}: {why_never(ask, load)}" for load in loads[:FEW])
            return NoPair(told or f"no {name} replica", FallbackKind.NO_REPLICA)
    if ask.no_handoff:
        return NoPair("its hand-off failed, and this is its last placement", FallbackKind.HANDOFF_FAILED)
    if ask.avoid_pairs and _all_failed(ask, fleet):
        return NoPair("its hand-off failed between all pairs", FallbackKind.HANDOFF_FAILED)
    best = best_pair(ask, fleet, config)
    if best is None:
        return _why_none(ask, fleet)
    if not best.meets and best.handoff is not None:
        waiting = best.handoff.giver.waiting
        in_time = best.ready_s <= ask.slo.ttft_s
        if waiting > (SPARED_PROMPTS if in_time and not ask.yields else 0):
            return NoPair(f"{best.handoff.giver.replica_id}: {waiting} prompts wait")
    return best


def usable_link(fleet: FleetLoads, giver: Load, taker: Load) -> LinkView | str:
    """The link from one replica to this very process of another, or why it cannot be used."""
    link = fleet.links.get(giver.replica_id, {}).get(taker.replica_id)
    if link is None:
        return "not connected yet"
    if link.why_not is not None:
        return link.why_not
    return link if link.peer_incarnation == taker.incarnation else "connected to an earlier process"


def best_pair(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | None:
    """The best of the pairs looked at (see the module), or None. Room is judged only of those that come into it."""
    num_pairs = len(fleet.prefill) * len(fleet.decode)
    few = num_pairs if num_pairs <= ALL_PAIRS else FEW
    givers = _by_ttft(ask, fleet.prefill, config)
    with_room: dict[str, bool] = {}
    found: list[Candidate] = []
    takers_tried = 0
    for taker in _by_room(ask, fleet.decode):
        if takers_tried == few:
            break
        if _taker_objection(ask, taker) is not None:
            continue
        givers_tried = 0
        for giver in givers:
            if giver.replica_id not in with_room:
                with_room[giver.replica_id] = _giver_objection(ask, giver) is None
            if not with_room[giver.replica_id] or (giver.replica_id, taker.replica_id) in ask.avoid_pairs:
                continue
            link = usable_link(fleet, giver, taker)
            if isinstance(link, str):
                continue
            found.append(pair_candidate(ask, giver, taker, link, config))
            givers_tried += 1
            if givers_tried == few:
                break
        takers_tried += givers_tried > 0
    return _best_of(found)


def pair_candidate(ask: Ask, giver: Load, taker: Load, link: LinkView, config: ClusterCoreConfig) -> Candidate:
    """The disaggregated plan on one pair, with its prediction and cost.

    The decode replica reserves while its step runs, so that only the prefill replica's own work comes before the
    prompt; the stream joins between two steps. The link is shared by the transfers in flight, and carries the KV of the
    prompts that are computed before this one first.
    """
    age_s = link.age_s + max(0.0, ask.now - giver.viewed_at)
    measured = cautious_rate(link, age_s, config.link_caution, config.link_spread_per_s)
    rate = config.link_unmeasured_bytes_per_s if measured is None else measured
    step_in_flight_s = taker.decode_step_s if taker.running else 0.0
    prefill_s = prefill_on_s(ask, giver, config.prefill_chunk)
    start_s = giver.backlog_s + guarded_wait_s(ask, giver, prefill_s)
    skipped = min(ask.cached_on(taker.replica_id), ask.prompt_tokens - 1)
    num_bytes = (handoff_tokens(ask, giver.block_size) - skipped) * giver.kv_bytes_per_token
    ahead = giver.waiting_tokens * giver.kv_bytes_per_token + link.bytes_in_flight
    exposed_s = link.latency_s + max(
        exposed_transfer_s(num_bytes, giver.num_layers, prefill_s, rate / (1 + giver.sending)),
        queued_transfer_s(num_bytes, ahead, start_s + prefill_s, rate),
    )
    transfer_s = num_bytes / rate + link.latency_s
    busy = giver.backlog_s > 0 or giver.sending > 0
    sustainable = not busy or is_sustainable(num_bytes, prefill_s, rate / SHARED)
    ttft_s = ask.waited_s + start_s + prefill_s
    switch_wait_s = exposed_s + step_in_flight_s
    tpot_s = decode_step_s(ask, taker)
    return Candidate(
        layout=_DISAGGREGATED,
        load=taker,
        prefill_s=prefill_s,
        ttft_s=ttft_s,
        tpot_s=tpot_s,
        harm_s=0.0,
        cost_s=prefill_s + exposed_s + config.link_cost * transfer_s,
        meets=sustainable and meets_targets(ask, taker, ttft_s + switch_wait_s, tpot_s),
        switch_wait_s=switch_wait_s,
        cached_tokens=ask.cached_on(giver.replica_id),
        handoff=PlannedHandoff(
            giver=giver,
            num_bytes=num_bytes,
            bytes_per_s=rate,
            link_age_s=None if measured is None else age_s,
            transfer_s=transfer_s,
            exposed_s=exposed_s,
            sustainable=sustainable,
        ),
    )


def handoff_tokens(ask: Ask, block_size: int) -> int:
    """Tokens whose KV crosses: the prompt once, then for each further sequence what is not a full block."""
    shared = (ask.prompt_tokens - 1) // block_size * block_size
    return ask.prompt_tokens + (ask.num_sequences - 1) * (ask.prompt_tokens - shared)


def _best_of(found: Sequence[Candidate]) -> Candidate | None:
    """Of those that meet the targets at about the least cost, the first one: the most room, then the least TTFT."""
    meeting = [candidate for candidate in found if candidate.meets]
    if not meeting:
        return min(found, key=lambda candidate: candidate.ready_s, default=None)
    dearest = ABOUT_THE_SAME * min(candidate.cost_s for candidate in meeting)
    return next(candidate for candidate in meeting if candidate.cost_s <= dearest)


def why_never(ask: Ask, load: Load) -> str | None:
    """Why a replica cannot take its leg however much room it gets, or None."""
    if load.closed is not None:
        return load.closed
    if not prompt_fits(ask, load):
        return f"prompt of {ask.prompt_tokens} tokens over its KV cache of {load.num_blocks * load.block_size}"
    if ask.num_sequences > load.max_waiting:
        return f"{ask.num_sequences} sequences over its waiting room of {load.max_waiting}"
    return None


def _giver_objection(ask: Ask, load: Load) -> str | None:
    """Why the prompt has no place on a prefill replica now, or None. It needs blocks for the prompt only."""
    if load.closed is not None:
        return load.closed
    if load.replica_id in ask.avoid:
        return JUST_REFUSED
    if load.waiting + ask.num_sequences > load.max_waiting:
        return f"{load.waiting} waiting of {load.max_waiting}"
    needed = -(-handoff_tokens(ask, load.block_size) // load.block_size)
    if needed > load.free_blocks and not (load.idle and load.sending == 0 and needed <= load.num_blocks):
        return f"{needed} KV blocks needed, {load.free_blocks} free"
    return None


def _taker_objection(ask: Ask, load: Load) -> str | None:
    if load.replica_id in ask.avoid:
        return JUST_REFUSED
    return place_objection(ask, load)


def _all_failed(ask: Ask, fleet: FleetLoads) -> bool:
    """Whether the hand-off of this request failed between all replicas that are open."""
    givers = [load.replica_id for load in fleet.prefill if load.closed is None]
    takers = [load.replica_id for load in fleet.decode if load.closed is None]
    return all((giver, taker) in ask.avoid_pairs for giver in givers for taker in takers)


def _by_ttft(ask: Ask, givers: Sequence[Load], config: ClusterCoreConfig) -> Sequence[Load]:
    if len(givers) < 2:
        return givers
    return sorted(givers, key=lambda load: load.backlog_s + prefill_on_s(ask, load, config.prefill_chunk))


def _by_room(ask: Ask, takers: Sequence[Load]) -> Sequence[Load]:
    if len(takers) < 2:
        return takers
    by_room = sorted(takers, key=lambda load: (decode_step_s(ask, load), -load.spare_blocks))
    if ask.cached and len(by_room) > FEW:
        warmest = max(by_room, key=lambda load: ask.cached_on(load.replica_id))
        if ask.cached_on(warmest.replica_id) and warmest not in by_room[:FEW]:
            by_room.remove(warmest)
            by_room.insert(FEW - 1, warmest)
    return by_room


def _why_none(ask: Ask, fleet: FleetLoads) -> NoPair:
    """No two replicas that could ever take their legs have a link; or between those that have, room is wanting now."""
    givers, takers = ([load for load in side if why_never(ask, load) is None] for side in (fleet.prefill, fleet.decode))
    if not any(_may_pair(ask, fleet, giver, taker) for giver in givers for taker in takers):
        kind = FallbackKind.HANDOFF_FAILED if ask.avoid_pairs else FallbackKind.NO_LINK
        return NoPair(_no_link(ask, fleet, givers, takers), kind)
    told = [(load, _giver_objection(ask, load)) for load in givers]
    told += [(load, _taker_objection(ask, load)) for load in takers]
    return NoPair("; ".join([f"{load.replica_id}: {why}" for load, why in told if why is not None][:FEW]))


def _may_pair(ask: Ask, fleet: FleetLoads, giver: Load, taker: Load) -> bool:
    """Whether a hand-off between the two may be planned at all."""
    if (giver.replica_id, taker.replica_id) in ask.avoid_pairs:
        return False
    return not isinstance(usable_link(fleet, giver, taker), str)


def _no_link(ask: Ask, fleet: FleetLoads, givers: Sequence[Load], takers: Sequence[Load]) -> str:
    told = []
    for giver in givers[:FEW]:
        for taker in takers[:FEW]:
            pair = (giver.replica_id, taker.replica_id)
            link = "its hand-off failed there" if pair in ask.avoid_pairs else usable_link(fleet, giver, taker)
            told.append(f"{pair[0]}->{pair[1]}: {link}")
    return "no usable link: " + "; ".join(told[:FEW])
