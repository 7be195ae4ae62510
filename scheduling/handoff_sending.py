"""The sender's half of a hand-off: which KV goes out under which ticket, and how long it is kept for the receiver."""

from __future__ import annotations

from contracts.batch import TokenLogprobs
from contracts.handoff import PrefillLeg
from contracts.replica_io import CommitKV, KVArriving, KVSendFailed, KVSent, LinkDown, SendKV, SequenceOutput
from scheduling.handoff_leases import sender_hold_s
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence, Status
from scheduling.sequence_ends import fail_handoff, give_up_sending


def note_grant(state: ReplicaState, sequence: Sequence) -> None:
    """A leg with a ticket was accepted: its bytes are under way from now on, as far as others plan with the link."""
    leg = sequence.request.leg
    if isinstance(leg, PrefillLeg):
        ticket = leg.ticket
        num_bytes = len(ticket.blocks) * ticket.block_size * state.layout.bytes_per_token
        state.links.granted(sequence.request_id, ticket.receiver_id, num_bytes)


def start_sending(state: ReplicaState, sequence: Sequence) -> None:
    """The sequence just got its blocks: what is computed of it goes out from now on."""
    leg = sequence.request.leg
    if isinstance(leg, PrefillLeg):
        sequence.transfer_open = True
        state.links.started(sequence.request_id)
        state.transfer_actions.append(
            SendKV(
                request_id=sequence.request_id,
                ticket=leg.ticket,
                blocks=sequence.table,
                ready_tokens=sequence.num_computed,
            )
        )


def hand_over(state: ReplicaState, sequence: Sequence, logprobs: tuple[TokenLogprobs, ...], now: float) -> None:
    """All its KV and its first token are computed: commit, and hold the blocks until the receiver has everything."""
    leg = sequence.request.leg
    assert isinstance(leg, PrefillLeg)
    peer_id = leg.ticket.receiver_id
    links = state.links
    hold_s = sender_hold_s(state.config, links.bytes_in_flight(peer_id), links.bytes_per_s(peer_id))
    sequence.lease_until = now + hold_s
    state.start_sending(sequence, now)
    links.computed(sequence.request_id, now)
    commit = CommitKV(request_id=sequence.request_id, token_ids=sequence.last_token, logprobs=logprobs)
    state.transfer_actions.append(commit)


def moving(state: ReplicaState, event: KVArriving, now: float) -> None:
    """Bytes get through: the hold is extended, never shortened. A link may be far slower than its estimate."""
    sequence = state.sending.get(event.request_id)
    if sequence is not None:
        hold_s = sender_hold_s(state.config, event.bytes_left, event.bytes_per_s)
        sequence.lease_until = max(sequence.lease_until, now + hold_s)


def sent(state: ReplicaState, event: KVSent, now: float) -> None:
    """The receiver has all of it. Harmless when it comes late: a stop that was asked for has an answer of its own."""
    sequence = state.sending.get(event.request_id)
    if sequence is None:
        return
    state.counters.handoffs_out += 1
    state.counters.kv_bytes_out += event.num_bytes
    state.links.note_transfer(event.request_id, failed=False)
    sequence.transfer_open = False
    state.end(sequence, now, finished=True)


def send_failed(state: ReplicaState, event: KVSendFailed, now: float) -> list[SequenceOutput]:
    """The hand-off failed. Before the first token the request fails here, after it the receiver speaks for it."""
    sequence = state.sequences.get(event.request_id)
    if sequence is None or not sequence.sends or sequence.status is Status.ENDING:
        return []
    state.links.note_transfer(event.request_id, failed=True)
    if sequence.status is Status.SENDING:
        state.counters.handoffs_failed += 1
        give_up_sending(state, sequence, event.reason, now)
        return []
    return [fail_handoff(state, sequence, event.reason, now)]


def lose_link(state: ReplicaState, event: LinkDown, now: float) -> list[SequenceOutput]:
    """A peer is gone: legs that wait to be computed for it fail at once. Open transfers are the data plane's to end."""
    state.links.down(event)
    doomed = []
    for sequence in state.waiting.values():
        leg = sequence.request.leg
        if isinstance(leg, PrefillLeg):
            ticket = leg.ticket
            if (ticket.receiver_id, ticket.receiver_incarnation) == (event.peer_id, event.peer_incarnation):
                doomed.append(sequence)
    return [fail_handoff(state, s, f"no link to {event.peer_id}: {event.reason}", now) for s in doomed]


def end_holds(state: ReplicaState, now: float) -> None:
    """Give up computed KV that its receiver has not taken in time."""
    for sequence in [s for s in state.sending.values() if s.lease_until <= now]:
        state.counters.handoffs_failed += 1
        state.links.note_transfer(sequence.request_id, failed=True)
        held_s = now - sequence.history[-1][1]
        give_up_sending(state, sequence, f"the receiver did not acknowledge the KV within {held_s:.1f} s", now)
