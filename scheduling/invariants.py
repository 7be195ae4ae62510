"""What must hold in one core after every event (design §8, as far as one replica can see it). For tests and audits."""

from __future__ import annotations

from collections import Counter

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
    assert state.ledger.num_free == state.ledger.num_blocks, "blocks are still held"
    assert not state.computing, "blocks are still waited for"
    assert state.waiting_tokens == 0, "waiting tokens are counted for nobody"
    assert state.counters.accepted == state.counters.ended, "accepted and ended requests differ"


def _check_collections(state: ReplicaState) -> None:
    expected = {
        Status.WAITING: state.waiting,
        Status.PREEMPTED: state.waiting,
        Status.PREFILLING: state.prefilling,
        Status.DECODING: state.decoding,
    }
    for request_id, sequence in state.sequences.items():
        assert sequence.request_id == request_id
        for place in (state.waiting, state.prefilling, state.decoding):
            belongs = expected.get(sequence.status) is place
            assert (place.get(request_id) is sequence) == belongs, f"{request_id} ({sequence.status}) is misplaced"
        if sequence.status is Status.ENDING:
            flying = [] if state.in_flight is None else state.in_flight.sequences
            assert any(other is sequence for other in flying), f"{request_id} waits for a step that does not run"
    live = sum(1 for s in state.sequences.values() if not s.is_over)
    assert len(state.waiting) + len(state.prefilling) + len(state.decoding) == live, "a collection holds a stranger"
    assert state.waiting_tokens == sum(len(s.tokens) for s in state.waiting.values()), "waiting tokens are miscounted"


def _check_blocks(state: ReplicaState) -> None:
    ledger = state.ledger
    ledger.check()
    held = Counter(block for s in state.sequences.values() for block in s.blocks)
    for block in range(ledger.num_blocks):
        assert ledger.references(block) == held[block], f"block {block}: references and holders differ"
    assert ledger.num_free + len(held) == ledger.num_blocks, "free + used is not the total"
    for block_hash, owner in state.computing.items():
        assert owner.status is Status.PREFILLING, f"{owner.request_id} computes nothing, but is waited for"
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


def _check_bounds(state: ReplicaState) -> None:
    config = state.config
    fresh = [s for s in state.waiting.values() if s.status is Status.WAITING]
    assert len(fresh) <= config.max_waiting, "more requests wait than allowed"
    assert state.num_running <= config.max_running, "more sequences run than allowed"
    assert len(fresh) <= 1 or sum(len(s.tokens) for s in fresh) <= config.max_waiting_tokens, "too many tokens wait"


def _check_no_idle_work(state: ReplicaState) -> None:
    """Whatever waits or runs could run: alone it fits, and with something running that something can go on."""
    assert state.in_flight is not None or state.num_running + len(state.waiting) == 0, "idle with work at hand"
