"""Several batches in flight: who is in which, what a cancel or a preemption may touch, and who gives way to whom."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import ConfigError, InvalidTransition
from contracts.phase import Role
from contracts.replica_io import ClientGone, DrainRequested, RoleAssigned, StepDone
from contracts.request import FinishReason, Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.sequence import Status

Lab = Any


def piped(replica_lab: Lab, depth: int = 4, role: Role = Role.MIXED, **more: Any) -> Lab:
    blocks = {name: more.pop(name) for name in ("num_blocks", "block_size", "eager") if name in more}
    config = ReplicaCoreConfig(pipeline_depth=depth, prefix_cache=False, **({"min_chunk": 1} | more))
    return replica_lab(role, config=config, **blocks)


def in_flight(lab: Lab) -> list[list[str]]:
    batches = [] if lab.in_flight is None else [lab.in_flight, *lab.behind]
    return [[chunk.sequence_id for chunk in batch.chunks] for batch in batches]


def test_prompts_fill_the_pipeline_one_batch_each_and_a_sequence_is_in_one_only(replica_lab: Lab) -> None:
    lab = piped(replica_lab, max_chunk=32)
    for name in "abcdef":
        lab.arrive(name, 32, max_tokens=3)
    assert in_flight(lab) == [["a"], ["b"], ["c"], ["d"]]
    lab.step()
    assert in_flight(lab) == [["b"], ["c"], ["d"], ["a", "e"]]
    lab.finish()


def test_streams_are_dealt_out_evenly(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=4)
    for index in range(10):
        lab.arrive(f"s{index}", 4, max_tokens=200)
    while any(len(chunk.token_ids) > 1 for _, batch in lab.batches[-4:] for chunk in batch.chunks):
        lab.step()
    for _ in range(12):
        lab.step()
    sizes = [len(names) for names in in_flight(lab)]
    assert max(sizes) - min(sizes) <= 1, sizes
    assert sum(sizes) == 10
    counts = [len(lab.got[f"s{index}"].tokens) for index in range(10)]
    assert max(counts) - min(counts) <= 2, "a stream was passed over"
    lab.finish()


def test_one_stream_takes_one_slot_and_the_others_stay_empty(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=3)
    lab.arrive("only", 8, max_tokens=5)
    while lab.in_flight is not None:
        assert in_flight(lab) == [["only"]]
        lab.step()
    lab.finish()


def test_a_cancel_frees_the_blocks_when_its_own_batch_has_landed(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=2, max_chunk=16, num_blocks=64, block_size=4)
    lab.arrive("a", 16, max_tokens=8)
    lab.arrive("b", 16, max_tokens=8)
    lab.send(ClientGone("b"))
    assert lab.got["b"].finish is FinishReason.CANCELLED
    lab.step()  # the batch of a
    assert lab.core.state.sequences["b"].status is Status.ENDING
    assert lab.core.state.sequences["b"].blocks
    lab.step()
    assert "b" not in lab.core.state.sequences
    lab.run()
    assert lab.core.state.ledger.num_free == 64


def test_what_is_in_flight_is_never_preempted_and_who_finds_no_block_waits_with_its_own(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=2, num_blocks=10, block_size=4, max_preemptions=3, output_reserve_quantile=0.0)
    for index in range(9):
        lab.arrive(f"short{index}", 4, max_tokens=2)
        lab.run()
    for name in ("a", "b", "c"):  # 7 blocks each in the end, of 10
        lab.arrive(name, 8, max_tokens=20)
    lab.finish()
    assert all(record.finish is FinishReason.LENGTH for record in lab.got.values())
    assert lab.core.state.counters.preemptions > 0


def test_a_higher_priority_gets_its_room_when_the_batches_in_its_way_have_landed(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=2, num_blocks=16, block_size=4, output_reserve_quantile=0.0)
    for name in ("low1", "low2"):
        lab.arrive(name, 24, max_tokens=8)
    for _ in range(4):
        lab.step()
    assert len(in_flight(lab)) == 2
    lab.arrive("high", 48, max_tokens=4, priority=1)
    assert lab.core.state.counters.preemptions == 0, "both are in flight"
    begun = lab.now
    lab.finish()
    record = lab.got["high"]
    assert record.finish is FinishReason.LENGTH
    assert record.token_times[0] < max(lab.got[name].token_times[-1] for name in ("low1", "low2"))
    assert record.token_times[0] > begun


def test_steps_may_land_in_any_order_and_an_unknown_one_is_an_error(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=2, max_chunk=16)
    lab.arrive("a", 16, max_tokens=2)
    lab.arrive("b", 16, max_tokens=2)
    first, second = lab.in_flight, lab.behind[0]
    core, engine = lab.core, lab.engine
    results = [engine.step(batch) for batch in (first, second)]
    lab.in_flight, lab.behind = first, []
    lab.send(StepDone(results[1], 0.01))
    assert core.state.in_flight.batch is first
    with pytest.raises(InvalidTransition, match="the step in flight is 0"):
        core.handle(StepDone(results[1], 0.01), lab.now)
    lab.in_flight = lab.behind.pop(0) if lab.behind else None
    lab.send(StepDone(results[0], 0.01))
    lab.finish()


def test_a_drain_and_a_role_change_end_well_with_batches_in_flight(replica_lab: Lab) -> None:
    lab = piped(replica_lab, depth=4, role=Role.ALTERNATING, max_chunk=8)
    for index in range(8):
        lab.arrive(f"s{index}", 12, max_tokens=6)
        lab.step()
    lab.send(RoleAssigned(Role.MIXED))
    lab.step()
    lab.send(DrainRequested())
    assert not lab.drained
    lab.finish()
    assert lab.drained


def test_deadlines_count_with_as_many_stage_times_as_batches_are_in_flight(replica_lab: Lab) -> None:
    """The chunk beside a stream is one whose step, `depth` times, fits into what the stream can spare."""
    sizes = {}
    for depth in (1, 4):
        lab = piped(replica_lab, depth=depth, max_chunk=512, chunk_multiple=1)
        lab.arrive("stream", 4, max_tokens=100, slo=Slo(ttft_s=1.0, tpot_s=0.2))
        lab.step()
        lab.step()
        lab.arrive("prompt", 900, max_tokens=2, slo=Slo(ttft_s=100.0, tpot_s=0.2))
        lab.step()
        before = len(lab.chunks_of("prompt"))
        while len(lab.chunks_of("prompt")) == before and before == 0:
            lab.step()
        sizes[depth] = len(lab.chunks_of("prompt")[0].token_ids)
        lab.finish()
    assert sizes[4] < sizes[1] / 2, sizes


@pytest.mark.parametrize("depth", [0, -1, 65])
def test_a_depth_that_cannot_be_is_refused(depth: int) -> None:
    with pytest.raises(ConfigError, match="pipeline_depth must be at"):
        ReplicaCoreConfig(pipeline_depth=depth)
