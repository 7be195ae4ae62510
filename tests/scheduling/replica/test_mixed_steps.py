"""Chunked prefill beside decodes: the deadline budget, Sarathi's fixed budget, and overdue prompts."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from contracts.phase import Phase, Role
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig

Lab = Any


def streaming(replica_lab: Lab, tpot_s: float, **settings: Any) -> Lab:
    lab = replica_lab(Role.MIXED, config=ReplicaCoreConfig(**settings), num_blocks=400, block_size=16)
    for index in range(4):
        lab.arrive(f"stream{index}", 8, 600, slo=Slo(tpot_s=tpot_s))
    while len(lab.core.state.decoding) < 4:
        lab.step()
    return lab


def test_the_deadline_budget_takes_the_largest_chunk_that_keeps_every_stream(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, 0.1, min_chunk=16)
    lab.arrive("prompt", 900, 3)
    lab.step()
    chunk = lab.in_flight.chunks[-1]
    assert lab.in_flight.phase is Phase.MIXED
    assert len(lab.in_flight.chunks) == 5
    due = min(s.deadline for s in lab.core.state.decoding.values())
    began = lab.now
    assert began + lab.duration(lab.in_flight) <= due + 1e-9
    assert len(chunk.token_ids) % 16 == 0
    longer = lab.duration(lab.in_flight) + 16 * 0.001
    assert began + longer > due  # one more multiple would not fit
    lab.finish()
    for index in range(4):
        record = lab.got[f"stream{index}"]
        elapsed = record.token_times[-1] - record.token_times[0]
        assert elapsed <= 0.1 * (len(record.tokens) - 1) + 1e-6


def test_a_fixed_budget_counts_decodes_first(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, 0.1, admission="sarathi(36)")
    lab.arrive("prompt", 100, 3)
    lab.step()
    sizes = []
    while lab.got["prompt"].tokens == []:
        sizes.append([len(chunk.token_ids) for chunk in lab.in_flight.chunks])
        lab.step()
    assert sizes == [[1, 1, 1, 1, 32], [1, 1, 1, 1, 32], [1, 1, 1, 1, 32], [1, 1, 1, 1, 4]]
    lab.finish()


@pytest.mark.parametrize("rule", ["deadline", "sarathi(4)"])
def test_a_prompt_without_room_is_served_once_overdue(replica_lab: Lab, rule: str) -> None:
    """Streams that cannot keep their target, or a budget below the decodes, would starve prompts for ever."""
    lab = streaming(replica_lab, 0.001, admission=rule, min_chunk=16, max_chunk=256)
    began = lab.now
    lab.arrive("prompt", 128, 1, slo=Slo(ttft_s=0.5))
    while lab.got["prompt"].finish is None:
        decode_only = all(len(chunk.token_ids) == 1 for chunk in lab.in_flight.chunks)
        assert decode_only or lab.now - began >= 0.5
        lab.step()
    assert lab.core.state.counters.overdraft_s > 0.0
    gaps = lab.got["stream0"].gaps_s
    assert max(gaps) < 3 * min(gaps)  # a share, not a stop
    lab.finish()


@pytest.mark.parametrize("share", [0.1, 0.3, 0.6])
def test_overdue_prompts_take_no_more_than_their_share(replica_lab: Lab, share: float) -> None:
    lab = streaming(replica_lab, 0.001, overdraft_share=share, min_chunk=16, max_chunk=256)
    lab.arrive("prompt", 500, 1, slo=Slo(ttft_s=0.1))
    lab.now += 0.1
    lab.step()
    began, decoding = lab.now, 0.0
    while lab.got["prompt"].finish is None:
        rows = [chunk for chunk in lab.in_flight.chunks if chunk.sequence_id != "prompt"]
        decoding += lab.duration(msgspec.structs.replace(lab.in_flight, chunks=tuple(rows)))
        lab.step()
    taken = 1.0 - decoding / (lab.now - began)
    assert 0.7 * share < taken < 1.15 * share
    lab.finish()


def test_however_much_slack_there_is_a_step_is_not_longer_than_the_gap_allowed(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, 5.0, max_gap_s=0.1, min_chunk=16)
    lab.arrive("prompt", 900, 3)
    lab.finish()
    assert len(lab.chunks_of("prompt")) > 9
    assert 0.08 < max(lab.got["stream0"].gaps_s) <= 0.1 + 1e-9


def test_without_streams_a_prompt_runs_in_the_largest_chunks(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, config=ReplicaCoreConfig(max_chunk=200))
    lab.arrive("prompt", 500, 1)
    lab.finish()
    assert [len(chunk.token_ids) for chunk in lab.chunks_of("prompt")] == [200, 200, 100]


@pytest.mark.parametrize("chunk", [1, 7, 16, 64, 512])
@pytest.mark.parametrize("role", [Role.MIXED, Role.ALTERNATING])
def test_chunk_sizes_do_not_show(replica_lab: Lab, role: Role, chunk: int) -> None:
    """CHK: prompts around multiples of the chunk; the right tokens, and no output before the first real one."""
    config = ReplicaCoreConfig(max_chunk=chunk, min_chunk=1, chunk_multiple=1, overdue_after=0.01)
    lab = replica_lab(role, config=config)
    for length in {max(1, chunk - 1), chunk, chunk + 1, 2 * chunk, 2 * chunk + 1} - set(range(900, 2000)):
        record = lab.arrive(f"p{length}", length, 3)
        lab.run()
        assert len(record.tokens) == 3
        assert max(len(c.token_ids) for c in lab.chunks_of(f"p{length}")) <= chunk
    lab.finish()
