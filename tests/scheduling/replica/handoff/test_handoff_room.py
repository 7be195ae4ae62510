"""Room for hand-offs: blocks and slots that senders and receivers hold, and who has the first claim on them."""

from __future__ import annotations

from typing import Any

from contracts.handoff import PrefillLeg
from contracts.phase import Role
from contracts.replica_io import (
    ReserveKV,
)
from contracts.request import FinishReason
from scheduling.config import ReplicaCoreConfig

Lab = Any


def actions(lab: Lab, kind: type) -> list[Any]:
    return [action for action in lab.actions if isinstance(action, kind)]


def test_a_prefill_leg_needs_no_blocks_for_output(pair_lab: Any) -> None:
    pair = pair_lab({"num_blocks": 8})
    record = pair.arrive("a", 30, 60)
    pair.finish()
    assert record.finish is FinishReason.LENGTH


def test_no_cycle_of_waiting_when_the_receiver_is_small(pair_lab: Any) -> None:
    """HND-4: room for about four requests, 40 at once; something ends all the time, nothing is refused or lost."""
    config = ReplicaCoreConfig(output_reserve_quantile=0.0)
    pair = pair_lab({"num_blocks": 64}, {"num_blocks": 40, "config": config})
    for index in range(40):
        pair.arrive(f"r{index}", 25 + index % 5, 12, rate=1e9)
    done = 0
    for _ in range(400):
        pair.deliver()
        pair.step(pair.p)
        pair.step(pair.d)
        done = sum(record.finish is not None for record in pair.d.got.values())
        if done == 40:
            break
    assert done == 40
    pair.finish()
    assert {record.finish for record in pair.d.got.values()} == {FinishReason.LENGTH}


def test_a_bounded_number_of_sequences_receives(pair_lab: Any) -> None:
    pair = pair_lab(d={"config": ReplicaCoreConfig(max_receiving=2)})
    for index in range(6):
        pair.arrive(f"r{index}", 20 + index)
    assert len(actions(pair.d, ReserveKV)) == 2
    assert pair.d.core.view(pair.d.now, "d", "1").waiting == 4
    pair.finish()


def test_an_overdue_prompt_has_the_first_claim_on_free_blocks(pair_lab: Any) -> None:
    pair = pair_lab(d={"num_blocks": 16})
    pair.d.arrive("stream", 8, 12)
    pair.d.arrive("whole", 40, 4, waited_s=100.0)  # 11 blocks of 16: not while the stream has 5
    pair.arrive("leg", 20, 2, rate=1e9)
    assert not actions(pair.d, ReserveKV)
    while pair.d.got["stream"].finish is None:
        pair.step(pair.d)
    pair.finish()
    assert pair.d.got["whole"].finish is pair.d.got["leg"].finish is FinishReason.LENGTH


def test_computed_kv_that_was_not_fetched_keeps_the_next_prompt_waiting(pair_lab: Any) -> None:
    pair = pair_lab({"num_blocks": 10})
    pair.arrive("a", 30)
    pair.arrive("b", 29)
    pair.deliver()
    pair.step(pair.p)
    # the other leg is quicker than the commit
    pair.deliver(next(i for i, (_, message, _) in enumerate(pair.queue) if isinstance(message, PrefillLeg)))
    assert sorted(pair.p.core.state.sending) == ["a"]
    assert sorted(pair.p.core.state.waiting) == ["b"]
    assert pair.p.in_flight is None
    pair.finish()
    assert {record.finish for record in pair.d.got.values()} == {FinishReason.LENGTH}


def test_a_sequence_whose_kv_is_under_way_is_never_preempted(pair_lab: Any) -> None:
    config = ReplicaCoreConfig(admission="sarathi(9)", min_chunk=1, output_reserve_quantile=0.0)
    pair = pair_lab({"role": Role.MIXED, "num_blocks": 30, "block_size": 1, "config": config}, {"block_size": 1})
    for index in range(8):
        pair.p.arrive(f"short{index}", 3, 2)
        pair.settle()
    for index in range(2):
        pair.p.arrive(f"stream{index}", 4, 24)
    pair.arrive("leg", 20, 3)
    pair.deliver()
    while pair.p.got["leg"].finish is None:
        assert pair.step(pair.p)
    assert pair.p.core.state.counters.preemptions > 0
    pair.finish()
    assert pair.d.got["leg"].finish is FinishReason.LENGTH


def test_an_overdue_prompt_has_the_first_claim_on_a_running_slot(pair_lab: Any) -> None:
    pair = pair_lab(d={"config": ReplicaCoreConfig(max_running=2)})
    pair.d.arrive("stream", 8, 12)
    pair.d.arrive("whole", 40, 4, waited_s=100.0)
    pair.arrive("leg", 20, 2, rate=1e9)
    assert not actions(pair.d, ReserveKV)
    pair.finish()
    assert pair.d.got["leg"].finish is FinishReason.LENGTH
