"""Streams that a prefill replica still decodes go on at a decode replica, where that costs less than to let them end.

A replica keeps its streams when its role changes (`scheduling.role_guard`). On one that is to prefill they are dear:
one stream alone takes a decode step out of each TPOT target of time, until the last of them has ended. Moved, they go
on as after the loss of a replica: what there is of them is computed once more, on any prefill replica, and handed over
as every prompt is. That takes its time only once.

With `n` streams that have `m` tokens to come each on average, staying takes `m * (ln n + 0.58)` decode steps of the
replica's time, moving takes the prefill of each, and must take far less. It is decided for all of them at
once: the last one costs as much as all. Who has several sequences, or was moved before, stays even so.
"""

from __future__ import annotations

import msgspec

from contracts.phase import Layout, Role
from scheduling.cluster_availability import may_fall_back
from scheduling.cluster_legs import request_prefill_on
from scheduling.cluster_placement import Placement
from scheduling.cluster_replica import ReplicaRecord
from scheduling.cluster_requests import RequestRecord, RequestStatus
from scheduling.fleet_passage import until_last
from scheduling.plan_disaggregated import best_pair
from scheduling.plan_inputs import Ask, Candidate

_HANDED_OVER = frozenset({None, Layout.DISAGGREGATED})
WORTH = 3.0
"""How many times as much staying must take as moving. What is computed again is so at once and for certain, before
prompts that wait; what staying takes is spread over all that the streams still have to say, of which the mean of a few
that ended is all that is known. With chats on 34B the ratio is 5 to 30; with documents of 13,000 tokens it is 1 to 2.5,
and moving them cost a request in twenty."""


def move_streams(place: Placement, output_tokens: float | None) -> None:
    """Move what is better moved, now. `output_tokens` are what a stream still has to come, on average; None: it is not
    known, and all of them stay. So they do where a hand-off that fails would end them."""
    if output_tokens is None or place.config.on_handoff_failure == "fail":
        return
    for replica in place.fleet:
        if replica.view.role is Role.PREFILL and replica.view.guarded and not replica.draining:
            _empty(place, replica, output_tokens)


def _empty(place: Placement, replica: ReplicaRecord, output_tokens: float) -> None:
    streams = [leg.record for leg in replica.placed.values() if _decodes(leg.record, replica)]
    again_s = sum(request_prefill_on(_ask(place, record), replica, place.config) for record in streams)
    if WORTH * again_s >= replica.view.decode_step_s * output_tokens * until_last(len(streams)):
        return
    moved = sum(_move(place, record, output_tokens) for record in streams if _movable(place, record))
    if moved:
        told = f"{moved} streams of {replica.replica_id} go on elsewhere, it is to prefill"
        place.fleet_decisions.note(place.now, "streams_moved", told, replica.replica_id, streams=moved, again_s=again_s)


def _decodes(record: RequestRecord, replica: ReplicaRecord) -> bool:
    return record.replica_id == replica.replica_id and record.status is RequestStatus.STREAMING


def _movable(place: Placement, record: RequestRecord) -> bool:
    """Each stream is moved once, and one at a time: sequences of one request have only their prompt in common. Its
    hand-off may fail: it must have a try left for that, and be served in any other way then."""
    has_try = record.tries < place.config.max_dispatches and may_fall_back(record.asked, place.config)
    return record.resumed_at is None and record.asked.num_sequences == 1 and has_try


def _said(record: RequestRecord, now: float) -> int:
    """Tokens that the client has of it, if it was on time. The router knows better, and sends on what there really is:
    only what a move costs is reckoned with this."""
    since_s = 0.0 if record.streams_since is None else now - record.streams_since
    tokens = 1 + int(since_s / record.asked.slo.tpot_s)
    return max(record.tokens_sent, min(tokens, record.asked.max_tokens - 1), 1)


def _ask(place: Placement, record: RequestRecord) -> Ask:
    """The stream as it would ask for a place now, with what it has said as a part of its prompt."""
    ask, said = place.ask(record), _said(record, place.now)
    return msgspec.structs.replace(
        ask,
        prompt_tokens=record.asked.prompt_tokens + said,
        reserve_tokens=max(1, min(record.asked.max_tokens - said, ask.reserve_tokens)),
        waited_s=0.0,
    )


def _move(place: Placement, record: RequestRecord, output_tokens: float) -> bool:
    """Whether there was a pair over which it goes on without being late in the end: what it has to wait it makes up for
    by the tokens to come, each of which is faster than its target."""
    ask = _ask(place, record)
    found = _pair(place, record, ask)
    if found is None or found.handoff is None or not found.handoff.sustainable:
        return False
    if found.ready_s > output_tokens * (ask.slo.tpot_s - found.tpot_s):
        return False
    record.tokens_sent = _said(record, place.now)
    place.move(record, ask, found, f"{record.replica_id} is to prefill")
    return True


def _pair(place: Placement, record: RequestRecord, ask: Ask) -> Candidate | None:
    """With the streams gone the prefill replica is not slowed by them any more."""
    if ask.layout not in _HANDED_OVER:
        return None
    loads = place.loads(record)
    free = [msgspec.structs.replace(load, guarded=0) for load in loads.prefill]
    return best_pair(ask, msgspec.structs.replace(loads, prefill=free), place.config)
