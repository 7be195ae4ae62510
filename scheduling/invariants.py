"""What must hold in one core after every event (as far as one replica can see it). For tests and audits."""

from __future__ import annotations

from collections import Counter

from contracts.handoff import TicketStatus
from scheduling.replica_core import ReplicaCore
from scheduling.replica_state import ReplicaState
from scheduling.sequence import Sequence, Status


def check_invariants(core: ReplicaCore) -> None:
    """Raises `AssertionError` naming the first thing that does not hold. Cost grows with sequences and blocks."""
    state = core.state
    _check_collections(state)
    _check_blocks(state)
    for sequence in state.sequences.values():
        _check_sequence(state, sequence)
    _check_bounds(state)
    _check_no_idle_work(state)
    assert state.counters.accepted - state.counters.ended == sum(
        1 for s in state.sequences.values() if not s.is_over
    ), "a request was lost or ended twice"


def assert_nothing_left(core: ReplicaCore) -> None:
    """After a drain: no sequence, no block held, no step, no block waited for."""
    state = core.state
    check_invariants(core)
    assert not state.sequences, f"sequences left: {sorted(state.sequences)}"
    assert state.in_flight is None, "a step is in flight"
    assert not state.flying, "sequences of no step are counted as in flight"
    assert state.ledger.num_free == state.ledger.num_blocks, "blocks are still held"
    assert not state.computing, "blocks are still waited for"
    assert not any(view.bytes_in_flight for view in state.links.views(0.0)), "bytes are counted as under way for nobody"
    assert state.waiting_tokens == 0, "waiting tokens are counted for nobody"
    assert state.counters.accepted == state.counters.ended, "accepted and ended requests differ"


def _check_collections(state: ReplicaState) -> None:
    expected = {
        Status.WAITING: state.waiting,
        Status.PREEMPTED: state.waiting,
        Status.PREFILLING: state.prefilling,
        Status.DECODING: state.decoding,
        Status.RECEIVING: state.receiving,
        Status.SENDING: state.sending,
    }
    places = (state.waiting, state.to_receive, state.prefilling, state.decoding, state.receiving, state.sending)
    for request_id, sequence in state.sequences.items():
        assert sequence.request_id == request_id
        home = state.to_receive if sequence.status is Status.WAITING and sequence.receives else None
        for place in places:
            belongs = (home if home is not None else expected.get(sequence.status)) is place
            assert (place.get(request_id) is sequence) == belongs, f"{request_id} ({sequence.status}) is misplaced"
        if sequence.status is Status.ENDING:
            waits = state.in_step(sequence) or sequence.transfer_open
            assert waits, f"{request_id} waits for a step that does not run or a transfer that is closed"
    live = sum(1 for s in state.sequences.values() if s.status is not Status.ENDING)
    assert sum(map(len, places)) == live, "a collection holds a stranger"
    queued = (*state.waiting.values(), *state.to_receive.values())
    assert state.waiting_tokens == sum(len(s.tokens) for s in queued), "waiting tokens are miscounted"
    assert not state.transfer_actions, "an action was kept back"
    guarded = {s.request_id for s in state.sequences.values() if s.guarded and not s.is_over}
    assert state.guarded == guarded, "who is guarded is not known"


def _check_blocks(state: ReplicaState) -> None:
    ledger = state.ledger
    ledger.check()
    held = Counter(block for s in state.sequences.values() for block in s.blocks)
    assert ledger.all_references() == held, "references and holders of the blocks differ"
    assert ledger.num_free + len(held) == ledger.num_blocks, "free + used is not the total"
    for block_hash, owner in state.computing.items():
        assert owner.status in {Status.PREFILLING, Status.RECEIVING}, f"{owner.request_id} is waited for in vain"
        assert not ledger.is_cached(block_hash) or block_hash in owner.hashes


def _check_sequence(state: ReplicaState, sequence: Sequence) -> None:
    name = f"{sequence.request_id} ({sequence.status})"
    assert sequence.table == tuple(sequence.blocks), f"{name}: stale block table"
    assert sequence.capacity == len(sequence.blocks) * state.layout.block_size, f"{name}: wrong capacity"
    assert sequence.num_output <= sequence.max_output, f"{name}: too much output"
    assert len(sequence.tokens) <= state.max_context, f"{name}: over the context"
    assert sequence.tokens_sent == sequence.num_output, f"{name}: tokens sent and made differ"
    assert sequence.preemptions <= state.config.max_preemptions, f"{name}: preempted too often"
    if sequence.status in {Status.WAITING, Status.PREEMPTED}:
        assert not sequence.blocks, f"{name}: holds blocks while it waits"
        assert sequence.num_computed == 0, f"{name}: claims KV without blocks"
    if sequence.status is Status.PREFILLING:
        assert len(sequence.tokens) <= sequence.capacity, f"{name}: not all of the prompt has blocks"
        assert 0 <= sequence.num_computed < len(sequence.tokens), f"{name}: nothing left to prefill"
    if sequence.status is Status.DECODING:
        assert sequence.remaining == 1, f"{name}: decodes without all its KV"
        assert sequence.num_computed <= sequence.capacity, f"{name}: KV beyond its blocks"
    _check_handoff(state, sequence, name)


def _check_handoff(state: ReplicaState, sequence: Sequence, name: str) -> None:
    status, ticket = sequence.status, sequence.ticket
    assert not (sequence.sends and status in {Status.DECODING, Status.PREEMPTED}), f"{name}: both handed over and kept"
    has_transfer = status in {Status.RECEIVING, Status.SENDING} or (sequence.sends and status is Status.PREFILLING)
    if status is not Status.ENDING:
        assert sequence.transfer_open == has_transfer, f"{name}: transfer open is {sequence.transfer_open}"
    if status is Status.RECEIVING:
        assert sequence.num_computed % state.layout.block_size == 0, f"{name}: skips a part of a block"
        assert len(sequence.tokens) <= sequence.capacity, f"{name}: not all of its KV has a place"
    if status is Status.SENDING:
        assert sequence.remaining == 1, f"{name}: handed over without all its KV"
    allowed = _TICKETS[status]
    assert (None if ticket is None else ticket.status) in allowed, f"{name}: its ticket is {ticket and ticket.status}"


_TICKETS: dict[Status, frozenset[TicketStatus | None]] = {
    Status.WAITING: frozenset({None}),
    Status.PREFILLING: frozenset({TicketStatus.SENDING}),
    Status.RECEIVING: frozenset({TicketStatus.RESERVED, TicketStatus.SENDING}),
    Status.SENDING: frozenset({TicketStatus.COMMITTED}),
    Status.DECODING: frozenset({TicketStatus.COMMITTED}),
    Status.PREEMPTED: frozenset({TicketStatus.ABORTED}),
    Status.ENDING: frozenset({TicketStatus.RELEASED, TicketStatus.ABORTED}),
    Status.ENDED: frozenset(),
}


def _check_bounds(state: ReplicaState) -> None:
    config = state.config
    queued = (*state.waiting.values(), *state.to_receive.values())
    fresh = [s for s in queued if s.status is Status.WAITING]
    assert len(state.receiving) <= config.max_receiving, "more sequences receive than allowed"
    assert len(fresh) <= config.max_waiting, "more requests wait than allowed"
    assert state.num_running <= config.max_running, "more sequences run than allowed"
    assert len(fresh) <= 1 or sum(len(s.tokens) for s in fresh) <= config.max_waiting_tokens, "too many tokens wait"


def _check_no_idle_work(state: ReplicaState) -> None:
    """Whatever waits or runs could run: alone it fits, and with something running that something can go on.

    Only what transfers hold (blocks, running slots, a prefix that is coming in) may keep a waiting sequence waiting
    without a step; each of them ends by itself or by its lease.
    """
    if state.in_flight is not None:
        if state.num_in_flight < state.config.pipeline_depth:
            free = (s for s in state.decoding.values() if s.request_id not in state.flying)
            ready = [s.request_id for s in free if s.num_computed < s.capacity]
            assert not ready, f"a stage is idle and {ready} could decode"
        return
    assert not state.behind, "a later step runs, but no first one"
    assert not {*state.prefilling, *state.decoding}, "idle with work at hand"
    assert not state.num_waiting or any(s.transfer_open for s in state.sequences.values()), "idle with work waiting"
