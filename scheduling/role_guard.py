"""A role that changes while sequences live: at once for what is to come, not at all for what is here.

Every sequence that was accepted under an earlier role and decodes here is *guarded* until it ends: no prefill takes
more of its time than its slack, whatever the role now and whatever that role's rule for its own streams. So nothing
waits for a drain. The cluster may move a stream meanwhile, where that costs less (`scheduling.stream_moves`). Prefill
legs that were accepted are computed and sent under any role, decode legs that wait for their KV get it; neither needs
the lease of a macro instance that the replica has just come to.
"""

from __future__ import annotations

import math

from contracts.handoff import DecodeLeg, PrefillLeg
from contracts.phase import Role
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence

BRIDGE_LEASE_S = 1.0
"""How long a replica that becomes alternating goes on with the prompts it has, until the cluster's lease is there."""


def assign_role(state: ReplicaState, role: Role, now: float) -> None:
    """From the next step on the replica decides by another role. The same role again changes nothing.

    A lease of the earlier role does not survive. A prefill replica owes its own streams no more than a step now and
    then: how late they are by that is not made up for afterwards, at the cost of others.
    """
    if role is state.role:
        return
    for sequence in state.sequences.values():
        if sequence.is_over or sequence.sends:
            continue
        late = state.role is Role.PREFILL and not sequence.guarded and sequence.first_decode_at is not None
        if late and sequence.deadline < now:
            sequence.deadline = now
        _guard(state, sequence)
    state.role = role
    state.clock.lease_until = -math.inf
    if state.prefilling or state.waiting:
        bridge_lease(state, now)


def _guard(state: ReplicaState, sequence: Sequence) -> None:
    sequence.guarded = True
    state.guarded.add(sequence.request_id)


def note_role_of(state: ReplicaState, sequence: Sequence, now: float) -> None:
    """A leg that was planned under an earlier role arrives only now: it is treated like those that were here before."""
    leg = sequence.request.leg
    if isinstance(leg, DecodeLeg) and state.role is Role.PREFILL:
        _guard(state, sequence)
    elif isinstance(leg, PrefillLeg):
        bridge_lease(state, now)


def bridge_lease(state: ReplicaState, now: float) -> None:
    """A short lease of its own, for prompts that no macro instance gave to an alternating replica."""
    if state.role is Role.ALTERNATING:
        state.clock.lease_until = max(state.clock.lease_until, now + BRIDGE_LEASE_S)


def guards(state: ReplicaState) -> bool:
    """Whether any running stream is guarded."""
    return not state.guarded.isdisjoint(state.decoding)


def guarded_allowance_s(state: ReplicaState, now: float) -> float:
    """How long every guarded stream can do without its next token: the least of their slacks, and of the times left to
    the TTFT targets of those whose clock has not started. Infinite without any."""
    allowed = math.inf
    for request_id in state.guarded:
        stream = state.decoding.get(request_id)
        if stream is None:
            continue
        if stream.first_decode_at is not None:
            allowed = min(allowed, stream.deadline - now)
        elif stream.ttft_deadline > now:  # a target already missed protects nothing
            allowed = min(allowed, stream.ttft_deadline - now)
    return allowed


def num_guarded(state: ReplicaState) -> int:
    """Sequences of an earlier role that still decode here or will."""
    return len(state.guarded)
