"""Who gives its KV blocks back under pressure. Recompute only; swapping is a later choice of the same kind.

Lowest priority first, then most slack, then latest arrival. A sequence already preempted `max_preemptions` times is
chosen only if nothing else is left; `output_reserve.growth_blocks` makes sure that this does not happen. A sequence
whose blocks belong to a transfer is never chosen: it does not grow, and its transfer ends.
"""

from __future__ import annotations

from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence


def _spare_s(sequence: Sequence, now: float) -> float:
    """Slack, or the time left to the TTFT target where the clock of the stream has not started."""
    due = sequence.ttft_deadline if sequence.first_decode_at is None else sequence.deadline
    return due - now


def choose_victim(state: ReplicaState, now: float) -> Sequence:
    """The running sequence that hurts least. There is at least one while anything decodes."""
    limit = state.config.max_preemptions
    return min(
        (s for s in (*state.prefilling.values(), *state.decoding.values()) if not s.transfer_open),
        key=lambda s: (s.preemptions >= limit, s.request.priority, -_spare_s(s, now), -s.arrived_at, s.request_id),
    )


def make_room_for_decodes(state: ReplicaState, now: float) -> None:
    """Give every decoding sequence the block its next token needs, preempting until all that are left have one.

    Always ends: each round removes a sequence, and one alone always fits (checked when it arrived).
    """
    needy = [s for s in state.decoding.values() if s.num_computed >= s.capacity]
    for sequence in needy:
        while sequence.request_id in state.decoding and state.ledger.num_free == 0:
            state.preempt(choose_victim(state, now), now)
        if sequence.request_id in state.decoding:
            sequence.add_block(state.ledger.allocate(1)[0], state.layout.block_size)
