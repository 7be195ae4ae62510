"""Choosing among the layouts' candidates for one request."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain

import msgspec

from contracts.phase import Layout, Role
from contracts.plan import FallbackKind
from scheduling.config import ClusterCoreConfig
from scheduling.plan_colocated import colocated_candidate, plan_colocated
from scheduling.plan_disaggregated import NoPair, plan_disaggregated, why_never
from scheduling.plan_inputs import Ask, Candidate, FleetLoads, Load
from scheduling.plan_predict import prefill_on_s
from scheduling.plan_reason import brief
from scheduling.plan_room import phased_candidate, room_objection
from scheduling.plan_turn import plan_turn

# Names of their own: in Python 3.11 looking a member up in its class takes ten times as long.
_ALTERNATING = Role.ALTERNATING
_MIXED = Role.MIXED


def plan_request(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | str:
    """Where the request goes now, or one sentence why it has to wait.

    A layout that was demanded is kept to; when no replica or no link is there for it (not when they are only busy)
    `ask.may_fall_back` decides whether another may serve. Free to choose, all layouts are compared: see `_free_choice`.
    """
    match ask.layout:
        case None:
            return _free_choice(ask, fleet, config)
        case Layout.DISAGGREGATED:
            found = _pair(ask, fleet, config)
            if isinstance(found, Candidate) or found.unavailable is None:
                return as_settled(found)
            return _fall_back(ask, fleet, found.reason, found.unavailable, config)
        case Layout.PHASED:
            if any_able(ask, fleet.alternating):
                return plan_on_one(ask, fleet.rings, (), config)
            why = f"no alternating replica {_lacking(fleet.alternating)}"
            return _fall_back(ask, fleet, why, FallbackKind.NO_REPLICA, config)
        case Layout.COLOCATED:
            if any_able(ask, fleet.mixed):
                return plan_on_one(ask, (), fleet.mixed, config)
            if any_able(ask, fleet.decode) or any_able(ask, fleet.prefill):
                return plan_in_pools(ask, fleet, config)
            why = f"no mixed replica {_lacking(fleet.mixed)}"
            return _fall_back(ask, fleet, why, FallbackKind.NO_REPLICA, config)


def _free_choice(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | str:
    """Among all layouts: of those that meet both targets the one that costs the fleet least, else the least late.

    Prefill and decode replicas serve requests whole only where nothing else that is open could hold them, and only if
    the hand-off cannot be had, or would miss targets (slow link) that computing in one place meets.
    """
    pools = bool(fleet.prefill or fleet.decode)
    found = _pair(ask, fleet, config) if pools else None
    if found is None or any_able(ask, fleet.alternating) or any_able(ask, fleet.mixed):
        single = plan_on_one(ask, fleet.rings, fleet.mixed, config)
        if found is None:
            return single
        return _compared(ask, fleet, single, found, config)
    if not ask.may_fall_back:
        return as_settled(found)
    if isinstance(found, NoPair):
        if found.unavailable is None:
            return found.reason
        return _fall_back(ask, fleet, found.reason, found.unavailable, config)
    if found.meets:
        return found
    local = plan_in_pools(ask, fleet, config)
    if isinstance(local, Candidate) and (local.meets or local.ready_s < found.ready_s):
        why = f"a hand-off would be worse: {brief(found)}"
        return msgspec.structs.replace(
            local, fallback=why, fallback_kind=FallbackKind.HANDOFF_WORSE, best_effort=not local.meets
        )
    return as_settled(found)


def _compared(
    ask: Ask, fleet: FleetLoads, single: Candidate | str, pair: Candidate | NoPair, config: ClusterCoreConfig
) -> Candidate | str:
    """The better of a plan on one replica and one on a pair."""
    if isinstance(pair, NoPair):
        if isinstance(single, str):
            return f"{single}; {pair.reason}"
        if pair.unavailable is None or not (fleet.prefill and fleet.decode):
            return single
        # A hand-off is what such a fleet is for: never silently without.
        return msgspec.structs.replace(single, fallback=f"no hand-off: {pair.reason}", fallback_kind=pair.unavailable)
    if isinstance(single, str):
        if pair.meets or is_hopeless(ask, (*fleet.alternating, *fleet.mixed), config):
            return as_settled(pair)
        return f"{single}; {brief(pair)}"
    if single.meets != pair.meets:
        better, other = (single, pair) if single.meets else (pair, single)
    elif single.meets:
        better, other = (single, pair) if single.cost_s <= pair.cost_s else (pair, single)
    else:
        better, other = (single, pair) if single.ready_s <= pair.ready_s else (pair, single)
    settled = as_settled(better)
    assert isinstance(settled, Candidate)
    return msgspec.structs.replace(settled, beats=brief(other))


def _pair(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | NoPair:
    """The best pair. One between which the request's hand-off failed before is used again only without alternative."""
    found = plan_disaggregated(ask, fleet, config)
    if isinstance(found, NoPair) and found.unavailable is not None and ask.avoid_pairs and not ask.may_fall_back:
        return plan_disaggregated(msgspec.structs.replace(ask, avoid_pairs=frozenset()), fleet, config)
    return found


def _fall_back(ask: Ask, fleet: FleetLoads, why: str, kind: FallbackKind, config: ClusterCoreConfig) -> Candidate | str:
    """Any other way to serve the request, if it may have one; `Plan.fallback` says what could not be had."""
    if not ask.may_fall_back:
        return why
    found: Candidate | str = "no other replica"
    if any_able(ask, fleet.alternating) or any_able(ask, fleet.mixed):
        found = plan_on_one(ask, fleet.rings, fleet.mixed, config)
    elif ask.layout in {Layout.COLOCATED, Layout.PHASED}:
        pair = plan_disaggregated(ask, fleet, config)
        found = as_settled(pair) if isinstance(pair, Candidate) else plan_in_pools(ask, fleet, config)
    else:
        found = plan_in_pools(ask, fleet, config)
    if isinstance(found, str):
        return f"{why}; {found}"
    return msgspec.structs.replace(found, fallback=why, fallback_kind=kind)


def plan_in_pools(ask: Ask, fleet: FleetLoads, config: ClusterCoreConfig) -> Candidate | str:
    """The request whole on one replica of the pools: a decode replica if one meets the targets, else the best."""
    found: list[Candidate] = []
    objections: list[str] = []
    for loads in (fleet.decode, fleet.prefill):
        local = plan_colocated(ask, [load for load in loads if load.replica_id not in ask.avoid], config)
        if isinstance(local, str):
            objections.append(local)
        elif local.meets:
            return local
        else:
            found.append(local)
    if found:
        return as_best_effort(min(found, key=lambda candidate: candidate.ready_s))
    return "; ".join(objections)


def any_able(ask: Ask, loads: Iterable[Load]) -> bool:
    """Whether any of them takes requests, and were it empty could take this one."""
    return any(why_never(ask, load) is None for load in loads)


def _lacking(loads: Iterable[Load]) -> str:
    """What keeps a request from replicas none of which is able."""
    open_now = any(load.closed is None for load in loads)
    return "could ever hold the request" if open_now else "takes requests"


def as_settled(found: Candidate | NoPair) -> Candidate | str:
    """A candidate as it is carried out: best effort when it does not meet the targets. Else why there is none."""
    if isinstance(found, NoPair):
        return found.reason
    return found if found.meets or found.best_effort else as_best_effort(found)


def plan_on_one(
    ask: Ask, rings: Sequence[Sequence[Load]], mixed: Sequence[Load], config: ClusterCoreConfig
) -> Candidate | str:
    """The request whole on one alternating or mixed replica now, or one sentence why it has to wait.

    1. Among candidates predicted to meet both targets, the one that costs the fleet least.
    2. Else an idle replica, if there is one.
    3. Else what the admission rule would have, if it is one that does not ask for predictions.
    4. Else, if no open replica can meet the TTFT target any more, best effort on the least loaded one with room.
    5. Else, in a fleet without alternating replicas, the best predicted TTFT: chunking protects the running streams.
    6. Else it waits: a replica's slack may grow in time.
    """
    colocated = plan_colocated(ask, mixed, config)
    if not rings and isinstance(colocated, Candidate) and colocated.meets:
        return colocated
    phased = plan_turn(ask, rings, config)
    candidates = [found for found in (phased, colocated) if isinstance(found, Candidate)]
    meeting = [candidate for candidate in candidates if candidate.meets]
    if meeting:
        return min(meeting, key=lambda candidate: candidate.cost_s)
    on_idle = [candidate for candidate in candidates if candidate.load.idle]
    if on_idle:
        return as_best_effort(min(on_idle, key=lambda candidate: candidate.ttft_s))
    settled = [candidate for candidate in candidates if candidate.settled]
    if settled:
        return as_best_effort(min(settled, key=lambda candidate: candidate.ttft_s))
    everywhere = [*chain.from_iterable(rings), *mixed]
    if is_hopeless(ask, everywhere, config):
        found = plan_best_effort(ask, everywhere, config)
        if isinstance(found, Candidate) or rings:
            return found
    if not rings and isinstance(colocated, Candidate):
        return colocated
    return "; ".join(found for found in (phased, colocated) if isinstance(found, str))


def is_hopeless(ask: Ask, loads: Sequence[Load], config: ClusterCoreConfig) -> bool:
    """Whether no open replica, were it empty, could still meet the TTFT target (also with nothing waited yet)."""
    return all(prefill_on_s(ask, load, config.prefill_chunk) > ask.ttft_left_s for load in loads if load.closed is None)


def plan_best_effort(ask: Ask, loads: Sequence[Load], config: ClusterCoreConfig) -> Candidate | str:
    """The least loaded open replica with room, whatever its slack; or why there is none.

    Without this a prompt whose own prefill exceeds the TTFT target would be rejected by every replica for ever
    (EcoServe's Algorithm 1 read literally).
    """
    best: Candidate | None = None
    objections: list[str] = []
    for load in loads:
        why_not = room_objection(ask, load)
        if why_not is None:
            why_not = _late_objection(ask, load, config)
        if why_not is not None:
            objections.append(f"{load.replica_id}: {why_not}")
            continue
        make = phased_candidate if load.role is _ALTERNATING else colocated_candidate
        candidate = make(ask, load, config)
        if best is None or candidate.ttft_s < best.ttft_s:
            best = candidate
    if best is None:
        return "; ".join(objections[:4]) or "no replica"
    return as_best_effort(best)


def _late_objection(ask: Ask, load: Load, config: ClusterCoreConfig) -> str | None:
    """Why a late prompt should not go to `load` yet, or None.

    It goes where no other prompt waits, within the slack of the running streams, while no punctual prompt needs
    either. In overload that may be never; so late prompts are forced upon a replica all the same, for at most
    `forced_share` of its time. More would eat the slack by which others are on time: without that bound nobody is.
    """
    forced_wait_s = load.forced_at - ask.now
    if forced_wait_s <= 0:
        return None
    if ask.yields or load.waiting > 0:
        return f"punctual prompts first, next late one in {forced_wait_s:.3f} s"
    if load.role is _MIXED or load.slack_s is None:
        return None
    window_s = load.backlog_s + prefill_on_s(ask, load, config.prefill_chunk)
    if window_s <= load.slack_s:
        return None
    return f"window {window_s:.3f} s over slack {load.slack_s:.3f} s, next late prompt in {forced_wait_s:.3f} s"


def as_best_effort(candidate: Candidate) -> Candidate:
    """`candidate`, taken although it does not meet the targets."""
    return msgspec.structs.replace(candidate, best_effort=True)
