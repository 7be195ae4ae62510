"""Who gives its KV blocks back under pressure. Recompute only; swapping is a later choice of the same kind.

Running sequences give way to each other when one that decodes needs a block, and to a waiting one whose request has a
strictly higher priority when slots or blocks are taken (`give_way`). Age raises the place in the queue, never the right
to another's blocks, and among equals nobody gives way to one that waits: else they would preempt each other in turn.

Lowest priority first, then most slack, then latest arrival. A sequence already preempted `max_preemptions` times is
chosen only by growth, if nothing else is left; `output_reserve.growth_blocks` makes sure that this does not happen. A
sequence whose blocks belong to a transfer is never chosen: it does not grow, and its transfer ends.
"""

from __future__ import annotations

from scheduling.admission import Reserve, look_up
from scheduling.output_reserve import growth_blocks
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence, Status


def spare_s(sequence: Sequence, now: float) -> float:
    """Slack, or the time left to the TTFT target where the clock of the stream has not started."""
    due = sequence.ttft_deadline if sequence.first_decode_at is None else sequence.deadline
    return due - now


def _preemptible(state: ReplicaState) -> list[Sequence]:
    running = (*state.prefilling.values(), *state.decoding.values())
    return [s for s in running if not s.transfer_open and s.request_id not in state.flying]


def choose_victim(state: ReplicaState, now: float) -> Sequence:
    """The running sequence that hurts least. There is at least one while anything decodes."""
    limit = state.config.max_preemptions
    return min(
        _preemptible(state),
        key=lambda s: (s.preemptions >= limit, s.request.priority, -spare_s(s, now), -s.arrived_at, s.request_id),
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


def make_room_for_rows(state: ReplicaState, rows: list[Sequence], now: float) -> list[Sequence]:
    """The same for `rows` of `state.decoding`, where other batches are in flight; those that have room in the end.

    What is in flight cannot be preempted. A row that nobody else gives way to then waits for a batch to land, blocks
    kept: the last one in flight leaves everybody to choose from.
    """
    ready = []
    for sequence in rows:
        if sequence.num_computed >= sequence.capacity:
            while sequence.request_id in state.decoding and state.ledger.num_free == 0:
                victim = choose_victim(state, now)
                last_resort = victim is sequence or victim.preemptions >= state.config.max_preemptions
                if last_resort and state.in_flight is not None:
                    break
                state.preempt(victim, now)
            if sequence.request_id in state.decoding and state.ledger.num_free:
                sequence.add_block(state.ledger.allocate(1)[0], state.layout.block_size)
        ready.append(sequence)
    return [s for s in ready if s.request_id in state.decoding and s.num_computed < s.capacity]


def give_way(state: ReplicaState, now: float) -> None:
    """Make room for the first of the highest priority that waits, if sequences of lower priority are in its way.

    Called when a step may begin; who is in a batch in flight gives way when that has landed. Nobody is preempted when
    it would not be enough, and none more often than `max_preemptions`. The one that room was made for is urgent from
    then on: it need not wait for a lease.
    """
    queue = (*state.waiting.values(), *state.to_receive.values())
    if not queue:
        return
    priority = max([s.priority for s in queue])
    limit = state.config.max_preemptions
    running = (*state.prefilling.values(), *state.decoding.values())
    lower = [s for s in running if s.priority < priority and s.preemptions < limit and not s.transfer_open]
    if not lower:
        return
    highest = (s for s in queue if s.priority == priority)
    first = min(highest, key=lambda s: (s.status is not Status.PREEMPTED, s.ttft_deadline, s.request_id))
    if not _would_be_enough(state, first, lower) or Reserve(state).admits(first, look_up(state, first)):
        return
    lower.sort(key=lambda s: (s.request.priority, -spare_s(s, now), -s.arrived_at, s.request_id))
    landing: list[Sequence] = []
    for victim in lower:
        if victim.request_id in state.flying:
            landing.append(victim)
        else:
            state.preempt(victim, now)
            first.made_room = True
        if landing and _would_be_enough(state, first, landing):
            return
        if Reserve(state).admits(first, look_up(state, first)):
            return


def _would_be_enough(state: ReplicaState, first: Sequence, lower: list[Sequence]) -> bool:
    """Whether `first` could start if none of `lower` ran, as `Reserve.admits` would have it."""
    config, ledger = state.config, state.ledger
    gone = {s.request_id for s in lower}
    stay = [
        s
        for s in (*state.prefilling.values(), *state.decoding.values(), *state.receiving.values())
        if s.request_id not in gone
    ]
    if len(stay) >= config.max_running or (first.receives and len(state.receiving) >= config.max_receiving):
        return False
    growth = sum(growth_blocks(s, state.lengths, config, state.layout.block_size) for s in (*stay, first))
    freed = sum(len(s.blocks) for s in lower)
    cached = look_up(state, first)
    free = ledger.num_free - ledger.num_unreferenced(cached) + freed
    alone = not stay and freed + ledger.num_free == ledger.num_blocks
    return alone or free - (state.layout.blocks_for(len(first.tokens)) - len(cached)) >= growth
