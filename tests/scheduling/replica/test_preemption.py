"""KV pressure: who gives way, how often, and that everyone ends with the right tokens."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Role
from contracts.request import FinishReason, SamplingParams, Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.preemption import choose_victim

Lab = Any
TIGHT = ReplicaCoreConfig(output_reserve_quantile=0.0, prefix_cache=False)


def crowded(replica_lab: Lab, role: Role = Role.MIXED, config: ReplicaCoreConfig = TIGHT, **settings: Any) -> Lab:
    """Ten sequences that all fit when they start and cannot all finish together."""
    lab = replica_lab(role, num_blocks=26, block_size=4, config=config, **settings)
    for _ in range(50):  # outputs are believed to be short
        lab.core.state.lengths.observe(2)
    for index in range(10):
        lab.arrive(f"r{index}", 6, 40)
    return lab


@pytest.mark.parametrize("role", [Role.MIXED, Role.ALTERNATING, Role.PREFILL])
def test_preempted_sequences_end_right_and_not_too_often(replica_lab: Lab, role: Role) -> None:
    lab = crowded(replica_lab, role)
    lab.finish()  # compares every token with an undisturbed run
    assert lab.core.state.counters.preemptions > 0
    assert all(record.finish is FinishReason.LENGTH for record in lab.got.values())
    assert max(record.usage.preemptions for record in lab.got.values()) <= TIGHT.max_preemptions


def test_sch_2_steady_arrivals_preempt_nobody_for_ever(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=30, block_size=4, config=TIGHT)
    for _ in range(50):
        lab.core.state.lengths.observe(2)
    for index in range(60):
        lab.arrive(f"r{index}", 6, 30)
        for _ in range(8):
            lab.step()
    lab.finish()
    usages = [record.usage for record in lab.got.values() if record.usage]
    assert max(usage.preemptions for usage in usages) <= 3
    total = sorted(record.token_times[-1] - record.token_times[0] for record in lab.got.values() if record.tokens)
    assert total[-1] <= 5 * total[len(total) // 2]


def test_one_sequence_that_needs_all_blocks_finishes_among_others(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=20, block_size=4, config=TIGHT)
    for _ in range(50):
        lab.core.state.lengths.observe(2)
    big = lab.arrive("big", 41, 40)  # 80 positions: all 20 blocks
    for index in range(6):
        lab.arrive(f"r{index}", 5, 20)
    lab.finish()
    assert len(big.tokens) == 40


def test_most_slack_goes_first_priority_and_history_before_it(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, config=TIGHT)
    lab.arrive("little", 6, 40, slo=Slo(tpot_s=0.05))
    lab.arrive("much", 6, 40, slo=Slo(tpot_s=0.5))
    lab.arrive("important", 6, 40, slo=Slo(tpot_s=5.0), priority=1)
    for _ in range(4):
        lab.step()
    state = lab.core.state
    assert choose_victim(state, lab.now).request_id == "much"
    state.sequences["much"].preemptions = TIGHT.max_preemptions
    assert choose_victim(state, lab.now).request_id == "little"
    state.sequences["little"].preemptions = TIGHT.max_preemptions
    assert choose_victim(state, lab.now).request_id == "important"
    lab.run()


def test_admission_leaves_room_for_the_output_it_has_seen(replica_lab: Lab) -> None:
    config = ReplicaCoreConfig(output_reserve_quantile=1.0, prefix_cache=False)
    lab = replica_lab(Role.MIXED, num_blocks=26, block_size=4, config=config)
    for _ in range(20):
        lab.core.state.lengths.observe(40)
    for index in range(10):
        lab.arrive(f"r{index}", 6, 40)
    lab.finish()
    assert lab.core.state.counters.preemptions == 0
    assert max(len(batch.chunks) for _, batch in lab.batches) == 2  # each needs 12 of the 26 blocks


def test_a_prompt_is_not_reported_twice(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=14, block_size=4, config=TIGHT)
    for _ in range(50):
        lab.core.state.lengths.observe(2)
    sampling = SamplingParams(temperature=0.0, max_tokens=30, prompt_logprobs=0)
    for index in range(4):
        lab.arrive(f"r{index}", 9, sampling=sampling)
    lab.finish()
    assert lab.core.state.counters.preemptions > 0
    assert all(sorted(record.prompt_logprobs) == list(range(1, 9)) for record in lab.got.values())


def test_a_prompt_preempted_half_way_reports_each_row_once(replica_lab: Lab) -> None:
    config = ReplicaCoreConfig(admission="sarathi(8)", prefix_cache=False)
    lab = replica_lab(Role.MIXED, config=config)
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=0)
    record = lab.arrive("victim", 30, sampling=sampling)
    lab.arrive("other", 4, 40, priority=1)
    lab.step()  # the victim's first eight rows are reported; "other" runs now, alone or with a smaller chunk
    lab.step()
    while any(chunk.sequence_id == "victim" for chunk in lab.in_flight.chunks):
        lab.core.state.config = ReplicaCoreConfig(admission="sarathi(1)", prefix_cache=False)
        lab.step()
    assert 0 < len(record.prompt_logprobs) < 29
    lab.core.state.preempt(lab.core.state.sequences["victim"], lab.now)
    lab.core.state.config = ReplicaCoreConfig(admission="sarathi(6)", prefix_cache=False)
    lab.finish()  # the lab refuses a row reported twice
    assert sorted(record.prompt_logprobs) == list(range(1, 30))


def test_a_long_prompt_that_waits_for_blocks_is_not_overtaken(replica_lab: Lab) -> None:
    lab = replica_lab(Role.MIXED, num_blocks=30, block_size=4, config=TIGHT)
    lab.arrive("stream", 40, 12)
    lab.step()
    lab.arrive("long", 90, 2)  # needs 23 blocks, 19 are free
    for index in range(4):
        lab.arrive(f"short{index}", 4, 2)
    lab.finish()
    order = [start.sequence_id for _, batch in lab.batches for start in batch.started]
    assert order[:2] == ["stream", "long"]


def test_usage_counts_preemptions_and_the_first_schedule_only(replica_lab: Lab) -> None:
    lab = crowded(replica_lab)
    lab.finish()
    usages = [record.usage for record in lab.got.values()]
    assert sum(usage.preemptions for usage in usages) == lab.core.view(lab.now, "r", "i").preemptions
    assert all(usage.queue_s >= 0.0 and usage.prefill_s > 0.0 for usage in usages)
