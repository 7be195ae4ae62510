"""The life of a request whose prompt is computed on one replica and whose output is made on another."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.handoff import FINISHED, TicketStatus
from contracts.phase import Role
from contracts.replica_io import ClientGone, CommitKV, Emit, ReserveKV, RunStep, SendKV, StopKV
from contracts.request import FinishReason, SamplingParams
from scheduling.config import ReplicaCoreConfig

Lab = Any
PROMPT = tuple(range(3, 35))  # 8 blocks of 4


def actions(lab: Lab, kind: type) -> list[Any]:
    return [action for action in lab.actions if isinstance(action, kind)]


@pytest.mark.parametrize("p_role", list(Role))
@pytest.mark.parametrize("d_role", list(Role))
def test_one_request_walks_through_all_steps(pair_lab: Any, p_role: Role, d_role: Role) -> None:
    pair = pair_lab({"role": p_role}, {"role": d_role})
    record = pair.arrive("a", 10, 5)  # 1 blocks are reserved at once; nothing runs on D
    (reserve,) = actions(pair.d, ReserveKV)
    assert (reserve.num_tokens, reserve.skip_tokens, len(reserve.blocks)) == (10, 0, 3)
    assert pair.d.in_flight is None
    view = pair.d.core.view(pair.d.now, "d", "1")
    assert (view.receiving, view.running, view.waiting, view.backlog_s) == (1, 1, 0, 0.0)
    pair.deliver()  # 2 the prefill leg starts: its blocks are named before the step that fills them
    assert [type(a) for a in pair.p.actions] == [SendKV, RunStep]
    assert pair.p.actions[0].ready_tokens == 0
    pair.step(pair.p)  # 3 the first token goes out from P, with the commit
    assert pair.p.got["a"].finish is FinishReason.HANDED_OVER
    (commit,) = actions(pair.p, CommitKV)
    assert list(commit.token_ids) == pair.p.got["a"].tokens
    sequence = pair.p.core.state.sequences["a"]
    assert sequence.ticket.status is TicketStatus.COMMITTED
    view = pair.p.core.view(pair.p.now, "p", "1")
    assert (view.sending, view.running) == (1, 0)
    assert record.tokens == []
    pair.deliver()  # 4 D has all KV: it says the first token too, and decodes
    assert record.tokens == pair.p.got["a"].tokens
    assert record.usage.handoff.num_bytes > 0  # said now: a stop string may end it at the router before it ends here
    started = pair.d.batches[0][1].started
    assert started[0].output_token_ids == tuple(record.tokens)
    assert pair.d.core.state.sequences["a"].ticket.status is TicketStatus.COMMITTED
    pair.deliver()  # 5 P hears that it arrived: its blocks are free
    assert "a" not in pair.p.core.state.sequences
    pair.finish()
    assert record.finish is FinishReason.LENGTH
    assert record.usage.output_tokens == 5
    assert record.usage.handoff.prefill_replica_id == "p"
    assert record.usage.switch_wait_s == pytest.approx(0.05)  # what was exposed of the transfer: nobody else waited
    views = [lab.core.view(lab.now, "x", "1") for lab in (pair.p, pair.d)]
    assert (views[0].handoffs_out, views[1].handoffs_in, views[0].handoffs_failed) == (1, 1, 0)
    assert views[0].kv_bytes_out == views[1].kv_bytes_in > 0


@pytest.mark.parametrize("chunk", [4, 16, 100])
def test_many_requests_are_right_whatever_the_chunks(pair_lab: Any, chunk: int) -> None:
    config = ReplicaCoreConfig(max_chunk=chunk, min_chunk=1, chunk_multiple=1)
    pair = pair_lab({"config": config}, {"config": config})
    for index in range(12):
        pair.arrive(f"r{index}", 3 + 7 * index, 2 + index)
        pair.step(pair.p)
    pair.finish()
    assert all(record.finish is FinishReason.LENGTH for record in pair.d.got.values())
    assert not any(chunk.start == 0 for _, batch in pair.d.batches for chunk in batch.chunks)


def test_a_first_token_that_ends_the_sequence_is_not_handed_over(pair_lab: Any) -> None:
    pair = pair_lab()
    record = pair.arrive("a", 10, 1)
    pair.deliver()
    pair.step(pair.p)
    assert pair.p.got["a"].finish is FinishReason.LENGTH
    assert pair.p.got["a"].usage.output_tokens == 1
    assert actions(pair.p, StopKV) == [StopKV("a", FINISHED)]
    assert pair.p.core.state.sequences["a"].status == "ending"
    pair.send(pair.d, ClientGone("a"))  # the router ends the other leg
    pair.finish()
    assert record.tokens == []
    assert not actions(pair.p, CommitKV)
    assert pair.p.core.state.counters.handoffs_failed == 0


def test_the_receiver_hears_of_such_an_end_before_its_router_does(pair_lab: Any) -> None:
    """Its own leg ends without an error: what there was to say is on its way from the sender."""
    pair = pair_lab()
    record = pair.arrive("a", 10, 1)
    pair.deliver()
    pair.step(pair.p)
    pair.finish()
    assert (record.tokens, record.error, record.finish) == ([], None, FinishReason.HANDED_OVER)
    assert pair.d.core.state.counters.handoffs_failed == 0


def test_logprobs_come_with_the_hand_off_and_prompt_logprobs_from_the_one_that_computes(pair_lab: Any) -> None:
    pair = pair_lab()
    sampling = SamplingParams(temperature=0.0, max_tokens=4, logprobs=2, prompt_logprobs=1)
    record = pair.arrive("a", PROMPT, sampling=sampling)
    pair.finish()
    assert sorted(pair.p.got["a"].prompt_logprobs) == list(range(1, 32))
    assert record.prompt_logprobs == {}
    emitted = [o for action in actions(pair.d, Emit) for o in action.outputs]
    assert [entry.token_id for output in emitted for entry in output.logprobs] == record.tokens


def test_only_what_the_receiver_lacks_is_asked_for(pair_lab: Any) -> None:
    pair = pair_lab()
    pair.arrive("a", PROMPT)
    pair.settle()
    again = pair.arrive("b", (*PROMPT, 40, 41, 42, 43, 44))
    reserve = actions(pair.d, ReserveKV)[-1]
    assert (reserve.skip_tokens, reserve.num_tokens) == (32, 37)  # received blocks are shared
    assert len(reserve.blocks) == 2
    pair.finish()
    assert actions(pair.p, SendKV)[-1].ready_tokens == 32  # and so are the sender's own
    assert again.usage.cached_tokens == 32
    assert pair.p.got["b"].usage.cached_tokens == 32


def test_n_sequences_of_one_prompt_receive_it_once(pair_lab: Any) -> None:
    pair = pair_lab()
    for name in "abc":
        pair.arrive(name, PROMPT)
    assert [r.request_id for r in actions(pair.d, ReserveKV)] == ["a"]
    pair.finish()
    assert [len(r.blocks) for r in actions(pair.d, ReserveKV)] == [8, 1, 1]
    assert all(record.finish is FinishReason.LENGTH for record in pair.d.got.values())


def test_when_the_first_of_them_is_lost_another_one_receives(pair_lab: Any) -> None:
    pair = pair_lab()
    for name in "ab":
        pair.arrive(name, PROMPT)
    pair.lose(0)  # the router never hears of the ticket
    pair.wait(1.9)
    assert len(actions(pair.d, ReserveKV)) == 1
    pair.wait(0.2)
    assert pair.d.got["a"].error.code == "kv_handoff_failed"
    assert [len(r.blocks) for r in actions(pair.d, ReserveKV)] == [8, 8]
    pair.finish()
    assert pair.d.got["b"].finish is FinishReason.LENGTH


def test_a_whole_request_waits_for_a_prefix_that_is_coming_in(pair_lab: Any) -> None:
    pair = pair_lab()
    pair.arrive("a", PROMPT)
    whole = pair.d.arrive("whole", PROMPT)
    assert pair.d.in_flight is None
    pair.finish()
    assert whole.usage.cached_tokens == 28


def test_the_prefix_cache_can_be_off(pair_lab: Any) -> None:
    config = ReplicaCoreConfig(prefix_cache=False)
    pair = pair_lab({"config": config}, {"config": config})
    for name in "abc":
        pair.arrive(name, PROMPT)
    pair.finish()
    assert [len(r.blocks) for r in actions(pair.d, ReserveKV)] == [8, 8, 8]


def test_both_kinds_of_work_share_both_replicas(pair_lab: Any) -> None:
    pair = pair_lab()
    for index in range(6):
        pair.arrive(f"r{index}", 20 + index, 6)
        pair.p.arrive(f"p{index}", 15, 6)
        pair.d.arrive(f"d{index}", 15, 6)
    pair.finish()
    records = [r for lab in (pair.p, pair.d) for r in lab.got.values()]
    assert {r.finish for r in records} == {FinishReason.LENGTH, FinishReason.HANDED_OVER}


def test_a_prefill_replica_computes_legs_before_whole_requests(pair_lab: Any) -> None:
    pair = pair_lab({"config": ReplicaCoreConfig(max_chunk=8, min_chunk=1, chunk_multiple=1)})
    pair.p.arrive("running", 9, 1)
    pair.p.arrive("whole", 8, 1)
    pair.arrive("leg", 8)
    pair.deliver()
    pair.step(pair.p)
    pair.step(pair.p)
    assert pair.p.got["leg"].finish is FinishReason.HANDED_OVER
    assert pair.p.got["whole"].finish is None
    pair.finish()


def test_a_preempted_sequence_is_computed_again_where_it_is(pair_lab: Any) -> None:
    """Its KV is gone on both sides: no second hand-off."""
    config = ReplicaCoreConfig(output_reserve_quantile=0.0)
    pair = pair_lab(d={"num_blocks": 24, "config": config})
    for index in range(3):
        pair.arrive(f"short{index}", 3, 2)
        pair.settle()
    for index in range(3):
        pair.arrive(f"r{index}", 20, 40)
    pair.finish()
    assert pair.d.core.state.counters.preemptions > 0
    assert len(actions(pair.d, ReserveKV)) == 6
    assert all(record.finish is FinishReason.LENGTH for record in pair.d.got.values())
