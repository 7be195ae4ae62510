"""The receiver's half of a hand-off: when blocks are reserved, how long they are kept, and what has arrived.

No cycle of waiting can form: blocks are reserved only with the output reserve of everything that runs kept free, a
sequence that holds reserved blocks needs nothing more of this replica to come in, and a lease ends its wait.
"""

from __future__ import annotations

from contracts.batch import SampledToken
from contracts.handoff import DecodeLeg, TicketStatus
from contracts.replica_io import KVArriving, KVLost, KVReceived, ReserveKV, SequenceOutput
from scheduling.admission import Reserve, computed_by, look_up
from scheduling.handoff_leases import receiver_lease_s
from scheduling.prefill_picks import is_urgent
from scheduling.prompt_order import order_prompts
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence
from scheduling.sequence_ends import fail_handoff, leave_to_sender
from scheduling.step_results import offer_to_cache, take_token


def reserve_handoffs(state: ReplicaState, now: float) -> None:
    """Reserve blocks for as many waiting sequences as there is room for, best first, and ask for their KV.

    Overdue and preempted prompts that wait to be computed here have the first claim on free blocks, unless what waits
    for its KV has a strictly higher priority.
    """
    config = state.config
    if not state.to_receive or len(state.receiving) >= config.max_receiving or state.num_running >= config.max_running:
        return
    reserve = Reserve(state)
    priority = max(s.request.priority for s in state.to_receive.values())
    for prompt in state.waiting.values():
        if prompt.request.priority >= priority and is_urgent(state, prompt, now):
            reserve.set_aside(prompt)
    waiting = list(state.to_receive.values())
    for sequence in order_prompts(waiting, [0.0] * len(waiting), config, now):
        if len(state.receiving) >= config.max_receiving:
            return
        cached = look_up(state, sequence)
        if computed_by(state, sequence, cached) is not None:
            continue
        if not reserve.admits(sequence, cached):
            return
        _reserve(state, sequence, cached, now)
        reserve.add(sequence)


def _reserve(state: ReplicaState, sequence: Sequence, cached: list[int], now: float) -> None:
    leg = _leg(sequence)
    state.start_receive(sequence, cached, now)
    blocks = sequence.table[len(cached) :]
    num_bytes = len(blocks) * state.layout.block_size * state.layout.bytes_per_token
    lease_s = receiver_lease_s(state.config, leg.expected_s, num_bytes, leg.link_bytes_per_s)
    sequence.lease_until = now + lease_s
    sequence.lease_terms = (lease_s, leg.expected_s, num_bytes, leg.link_bytes_per_s)
    state.transfer_actions.append(
        ReserveKV(
            request_id=sequence.request_id,
            prefill_replica_id=leg.prefill_replica_id,
            num_tokens=len(sequence.tokens),
            skip_tokens=sequence.num_computed,
            blocks=blocks,
        )
    )


def arriving(state: ReplicaState, event: KVArriving, now: float) -> None:
    """A sign of life: the lease is extended, never shortened."""
    sequence = state.receiving.get(event.request_id)
    if sequence is None:
        return
    assert sequence.ticket is not None
    if sequence.ticket.status is TicketStatus.RESERVED:
        sequence.ticket.move_to(TicketStatus.SENDING, now)
    rate = event.bytes_per_s if event.bytes_per_s > 0.0 else _leg(sequence).link_bytes_per_s
    lease_s = receiver_lease_s(state.config, event.expected_s, event.bytes_left, rate)
    if now + lease_s > sequence.lease_until:
        sequence.lease_until = now + lease_s
        sequence.lease_terms = (lease_s, event.expected_s, event.bytes_left, rate)


def received(state: ReplicaState, event: KVReceived, now: float) -> list[SequenceOutput]:
    """All KV is there and verified: it is shared from now on, and the sequence decodes after the sender's token.

    The report goes out at once: the router may end the sequence (a stop string) before it ends here.
    """
    sequence = state.receiving.get(event.request_id)
    if sequence is None:
        return []
    if len(event.token_ids) != 1:
        reason = f"the hand-off came with {len(event.token_ids)} output tokens instead of one"
        return [fail_handoff(state, sequence, reason, now)]
    assert sequence.ticket is not None
    if sequence.ticket.status is TicketStatus.RESERVED:
        sequence.ticket.move_to(TicketStatus.SENDING, now)
    state.counters.handoffs_in += 1
    state.counters.kv_bytes_in += event.report.num_bytes
    sequence.transfer_open = False
    sequence.handoff = event.report
    before, sequence.num_computed = sequence.num_computed, len(sequence.tokens)
    if state.ledger.caching:
        offer_to_cache(state, sequence, before, sequence.num_computed)
    logprobs = event.logprobs[0] if event.logprobs else None
    if sequence.first_token_at is None:  # made elsewhere, before the rest of its KV came: the switch wait began then
        sequence.first_token_at = now - event.report.exposed_s
    return [take_token(state, sequence, SampledToken(event.request_id, event.token_ids[0], logprobs), (), now)]


def lost(state: ReplicaState, event: KVLost, now: float) -> list[SequenceOutput]:
    """The KV will not come whole. What came of it is never shared."""
    sequence = state.receiving.get(event.request_id)
    if sequence is None:
        return []
    if event.finished:
        return [leave_to_sender(state, sequence, now)]
    state.counters.checksum_errors += event.corrupt
    return [fail_handoff(state, sequence, event.reason, now)]


def end_leases(state: ReplicaState, now: float) -> list[SequenceOutput]:
    """Fail every sequence whose KV gave no sign of life for the length of its lease."""
    late = [s for s in state.receiving.values() if s.lease_until <= now]
    return [fail_handoff(state, s, _silence(s, now), now) for s in late]


def _silence(sequence: Sequence, now: float) -> str:
    since = now - sequence.history[-1][1]
    lease_s, expected_s, num_bytes, rate = sequence.lease_terms
    pace = f"{rate / 1e6:.3g} MB/s" if rate > 0.0 else "an unknown rate"
    return (
        f"{_leg(sequence).prefill_replica_id} gave no sign of life in time, {since:.1f} s after the reservation: the"
        f" lease of {lease_s:.1f} s, for {num_bytes} bytes at {pace} expected in {expected_s:.1f} s, ended"
    )


def _leg(sequence: Sequence) -> DecodeLeg:
    leg = sequence.request.leg
    assert isinstance(leg, DecodeLeg)
    return leg
