"""How a hand-off ends other than well, on either side and at every step: nothing stays held, nothing is freed early."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.handoff import KVTicket, PrefillLeg
from contracts.replica_io import (
    ClientGone,
    CommitKV,
    DrainRequested,
    KVArriving,
    KVClosed,
    KVLost,
    KVReceived,
    KVSendFailed,
    KVSent,
    LinkDown,
    LinkUp,
    ReserveKV,
    StopKV,
    Woken,
)
from contracts.request import FinishReason
from scheduling.config import ReplicaCoreConfig

Lab = Any
STEPS = range(7)


def actions(lab: Lab, kind: type) -> list[Any]:
    return [action for action in lab.actions if isinstance(action, kind)]


def walk(pair: Any, steps: int, max_tokens: int = 5) -> Any:
    """A request, and so many steps of its way."""
    record = pair.arrive("a", 30, max_tokens)
    way = [
        pair.deliver,  # 1 P has the leg, and its first chunk runs
        lambda: pair.step(pair.p),
        lambda: pair.step(pair.p),  # 3 P has computed all
        pair.deliver,  # 4 D has all
        lambda: pair.step(pair.d),
        pair.deliver,  # 6 P knows
    ]
    for move in way[:steps]:
        move()
    return record


def small_chunks(pair_lab: Any) -> Any:
    config = ReplicaCoreConfig(max_chunk=16, min_chunk=1, chunk_multiple=1)
    return pair_lab({"config": config}, {"config": config})


@pytest.mark.parametrize("who", ["p", "d", "both"])
@pytest.mark.parametrize("steps", STEPS)
def test_a_cancel_at_any_step_frees_everything_and_may_be_repeated(pair_lab: Any, steps: int, who: str) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, steps)
    for lab in (pair.p, pair.d):
        if who in {"both", "p" if lab is pair.p else "d"}:
            for _ in range(3):
                pair.send(lab, ClientGone("a"))
    pair.settle()
    outputs = pair.d.got["a"]
    assert outputs.finish in {FinishReason.CANCELLED, FinishReason.LENGTH, FinishReason.ERROR}
    if who != "p":
        assert outputs.finish is FinishReason.CANCELLED
    for name in ("b", "c"):  # the next ones are served
        record = pair.arrive(name, 30)
        pair.settle()
        assert record.finish is FinishReason.LENGTH
    pair.finish()


@pytest.mark.parametrize("steps", STEPS)
def test_whatever_is_said_late_or_for_nobody_is_harmless(pair_lab: Any, steps: int) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, steps)
    report = pair.d.core.state.sequences["a"].handoff
    for lab in (pair.p, pair.d):
        for event in (
            ClientGone("x"),
            KVArriving("x", 0, 0.0),
            KVLost("x", "why"),
            KVSent("x", 1),
            KVSendFailed("x", "why"),
            KVClosed("x"),
            KVReceived("x", (1,), (), report),
        ):
            pair.send(lab, event)
    pair.send(pair.p, KVReceived("a", (1,), (), report))  # of the other side
    pair.send(pair.p, KVLost("a", "why"))
    pair.send(pair.d, KVSent("a", 1))
    pair.send(pair.d, KVSendFailed("a", "why"))
    pair.finish()
    assert pair.d.got["a"].finish is FinishReason.LENGTH


def test_blocks_of_a_lost_hand_off_are_freed_when_it_is_closed_and_never_shared(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    record = walk(pair, 2)
    pair.send(pair.d, KVLost("a", "layer 3: wrong checksum", corrupt=True))
    assert record.error.code == "kv_handoff_failed"
    assert record.error.status == 503
    assert "checksum" in record.error.message
    state = pair.d.core.state
    assert state.counters.checksum_errors == 1
    assert state.ledger.num_free < state.ledger.num_blocks
    pair.settle()
    assert actions(pair.d, StopKV) == [StopKV("a", "layer 3: wrong checksum")]
    assert pair.p.got["a"].error.code == "kv_handoff_failed"
    again = pair.arrive("b", pair.d.requests["a"].prompt_token_ids)
    assert actions(pair.d, ReserveKV)[-1].skip_tokens == 0
    pair.finish()
    assert again.finish is FinishReason.LENGTH


def test_a_row_that_fails_on_the_sender_stops_only_its_own_transfer(pair_lab: Any) -> None:
    pair = pair_lab()
    for name in "abc":
        pair.arrive(name, 30 + ord(name) % 3)
    while pair.deliver():
        pass
    pair.p.engine.fail_rows_on(lambda chunk: chunk.sequence_id == "b")
    pair.finish()
    assert pair.p.got["b"].error.code == "engine_failure"
    assert pair.d.got["b"].error.code == "kv_handoff_failed"
    assert {pair.d.got[name].finish for name in "ac"} == {FinishReason.LENGTH}


def test_a_receiver_without_a_sign_of_life_gives_up_after_its_lease(pair_lab: Any) -> None:
    pair = pair_lab()
    record = pair.arrive("a", 30, expected_s=1.0, rate=1e6)
    assert pair.d.core.state.receiving["a"].lease_terms[0] == pytest.approx(3.0 * (1.0 + 32 * 512 / 1e6))
    pair.queue.clear()
    pair.wait(2.9)
    assert record.finish is None
    pair.send(pair.d, KVArriving("a", 1_000_000, 500_000.0, 1.0))  # 3 s more, times 3
    pair.wait(8.9)
    assert record.finish is None
    pair.send(pair.d, KVArriving("a", 10, 500_000.0))  # nearly there: not a reason to wait for less
    pair.wait(0.05)
    assert record.finish is None
    pair.wait(2.1)
    assert record.error.code == "kv_handoff_failed"
    assert "no sign of life" in record.error.message
    pair.finish()


@pytest.mark.parametrize(("expected_s", "rate", "lease_s"), [(0.0, 1e12, 2.0), (1e9, 1e6, 30.0), (0.1, 0.0, 30.0)])
def test_leases_have_bounds(pair_lab: Any, expected_s: float, rate: float, lease_s: float) -> None:
    pair = pair_lab()
    pair.arrive("a", 30, expected_s=expected_s, rate=rate)
    assert pair.d.core.state.receiving["a"].lease_terms[0] == lease_s
    pair.finish()


def test_a_sender_holds_on_while_its_bytes_get_through(pair_lab: Any) -> None:
    """A link that is far slower than it was takes longer than any hold that followed from its rate."""
    pair = pair_lab()
    walk(pair, 3)
    assert "a" in pair.p.core.state.sending
    for left in range(10, 0, -1):
        pair.p.now += 20.0
        pair.p.send(KVArriving("a", left * 1000, 1e6))
    assert "a" in pair.p.core.state.sending
    pair.p.now += 31.0
    pair.p.send(Woken())
    assert "a" not in pair.p.core.state.sending


def test_a_sender_that_hears_nothing_gives_up_after_its_hold(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, 4)
    pair.queue.clear()  # the acknowledgement is lost
    pair.wait(29.0)
    assert "a" in pair.p.core.state.sending
    pair.wait(1.1)
    assert "a" not in pair.p.core.state.sending
    pair.finish()
    assert pair.p.core.state.counters.handoffs_failed == 1
    assert pair.d.got["a"].finish is FinishReason.LENGTH  # the receiver had it all


def test_a_draining_sender_waits_until_its_kv_was_fetched(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, 3)
    pair.send(pair.p, DrainRequested())
    assert not pair.p.drained
    pair.deliver()
    assert not pair.p.drained
    pair.deliver()
    assert pair.p.drained
    pair.settle()


def test_a_draining_sender_does_not_wait_for_ever(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, 3)
    pair.send(pair.p, DrainRequested())
    pair.queue.clear()
    pair.wait(31.0)
    pair.settle()
    assert pair.p.drained


def test_a_link_that_goes_down_fails_the_legs_that_wait_for_it(pair_lab: Any) -> None:
    config = ReplicaCoreConfig(max_running=1)
    pair = pair_lab({"config": config})
    pair.send(pair.p, LinkUp("d", "d1", "tcp", "eth0", 1e-4))
    for name in "abc":
        pair.arrive(name, 30 + ord(name) % 3)
    while pair.deliver():
        pass
    assert sorted(pair.p.core.state.waiting) == ["b", "c"]
    pair.send(pair.p, LinkDown("d", "d0", "an old process"))
    assert sorted(pair.p.core.state.waiting) == ["b", "c"]
    pair.send(pair.p, LinkDown("d", "d1", "cable pulled"))
    assert not pair.p.core.state.waiting
    assert "cable pulled" in pair.p.got["b"].error.message
    pair.finish()


def test_a_hand_off_needs_exactly_one_token(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    record = walk(pair, 3)
    report = actions(pair.p, CommitKV)
    assert report
    pair.deliver()
    good = pair.past[-1][1]
    other = pair.arrive("b", 30)
    pair.send(pair.d, KVReceived("b", (), (), good.report))
    assert other.error.code == "kv_handoff_failed"
    pair.finish()
    assert record.finish is FinishReason.LENGTH


def test_a_ticket_for_another_length_is_refused(replica_lab: Any) -> None:
    lab = replica_lab()
    ticket = KVTicket(
        ticket_id="0" * 32,
        receiver_id="d",
        receiver_incarnation="d1",
        num_tokens=11,
        skip_tokens=0,
        blocks=(0, 1, 2),
        block_size=4,
    )
    lab.arrive("a", 10, leg=PrefillLeg(ticket=ticket))
    assert lab.refused["a"].param == "leg"


def test_blocks_stay_held_when_the_step_ends_before_the_transfer_is_closed(pair_lab: Any) -> None:
    pair = small_chunks(pair_lab)
    walk(pair, 1)
    pair.send(pair.p, ClientGone("a"))
    assert pair.p.got["a"].finish is FinishReason.CANCELLED
    pair.step(pair.p)
    ledger = pair.p.core.state.ledger
    assert ledger.num_free == ledger.num_blocks - 8
    pair.finish()
