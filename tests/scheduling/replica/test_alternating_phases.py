"""When an alternating replica prefills and when it goes back to decode."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Phase, Role
from contracts.replica_io import ClientGone, LeaseGranted, LeaseRevoked, RoleAssigned, Woken
from contracts.request import Slo
from scheduling.config import ReplicaCoreConfig
from scheduling.role_guard import BRIDGE_LEASE_S

Lab = Any
SLACK = Slo(ttft_s=4.0, tpot_s=0.25)


def streaming(replica_lab: Lab, *, steps: int = 20, role: Role = Role.ALTERNATING, **settings: Any) -> Lab:
    """A lab with one stream that has banked slack for `steps` decode steps (about 0.24 s each)."""
    lab = replica_lab(role, config=ReplicaCoreConfig(**settings), num_blocks=400, block_size=16)
    lab.arrive("stream", 8, 900, slo=SLACK)
    for _ in range(steps + 1):
        lab.step()
    return lab


def phase_of(lab: Lab) -> Phase:
    return Phase(lab.in_flight.phase)


def test_without_a_lease_it_decodes_on(replica_lab: Lab) -> None:
    lab = streaming(replica_lab)
    lab.arrive("prompt", 64)
    for _ in range(10):
        lab.step()
        assert phase_of(lab) is Phase.DECODE
    lab.send(LeaseGranted(1.0))
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()


def test_with_nothing_to_decode_no_lease_is_needed(replica_lab: Lab) -> None:
    lab = replica_lab()
    lab.arrive("a", 2000 // 4)
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()


def test_a_lease_that_ends_or_is_taken_back_ends_in_decode(replica_lab: Lab) -> None:
    for end in ("runs out", "revoked"):
        lab = streaming(replica_lab, max_chunk=64, min_chunk=16)
        lab.send(LeaseGranted(0.05 if end == "runs out" else 100.0))
        lab.arrive("prompt", 600)
        lab.step()
        assert phase_of(lab) is Phase.PREFILL
        if end == "revoked":
            lab.send(LeaseRevoked())
        lab.step()
        assert phase_of(lab) is Phase.DECODE
        lab.send(Woken())
        lab.finish()


def test_a_phase_goes_on_while_slack_lasts_and_chunks_are_cut_to_it(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, steps=2, max_chunk=512, min_chunk=32, max_gap_s=60.0)  # slack about 0.8 s
    lab.send(LeaseGranted(100.0))
    lab.arrive("prompt", 1010, 8)
    lab.step()
    sizes = []
    while phase_of(lab) is Phase.PREFILL:
        sizes.append(len(lab.in_flight.chunks[0].token_ids))
        lab.step()
    assert sizes[0] == 512
    assert 32 <= sizes[-1] < 512
    assert sizes[-1] % 16 == 0
    assert lab.core.view(lab.now, "r", "i").slack_quantiles_s[0] > 0.0
    lab.finish()
    assert lab.core.state.counters.overdraft_s == 0.0


def test_it_enters_only_for_a_whole_prompt_or_half_of_the_longest_chunk(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, steps=0, max_chunk=512, min_chunk=32, max_gap_s=60.0)
    lab.send(LeaseGranted(100.0))
    lab.arrive("long", 1000, 8)
    entered_with = 0
    for _ in range(20):
        lab.step()
        if phase_of(lab) is Phase.PREFILL:
            entered_with = len(lab.in_flight.chunks[0].token_ids)
            break
    assert 256 <= entered_with < 512
    lab = streaming(replica_lab, steps=1, max_chunk=512, min_chunk=32, max_gap_s=60.0)
    lab.send(LeaseGranted(100.0))
    lab.arrive("short", 100, 8)
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()


def test_one_prefill_step_holds_several_prompts(replica_lab: Lab) -> None:
    lab = streaming(replica_lab)
    for index in range(4):
        lab.arrive(f"p{index}", 30)
    lab.send(LeaseGranted(5.0))
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    assert len(lab.in_flight.chunks) == 4
    lab.finish()


def keep_waiting(lab: Lab, seconds: float, prompt: int, *, leased: bool, slo: Slo = SLACK) -> None:
    """Runs for so long while one prompt always waits."""
    end, count = lab.now + seconds, 0
    while lab.now < end:
        if not lab.core.state.waiting:
            count += 1
            lab.arrive(f"p{count}", prompt, 1, slo=slo)
        if leased:
            lab.send(LeaseGranted(2.0))
        lab.step()


@pytest.mark.parametrize("max_gap_s", [0.5, 2.0])
def test_sch_4_prompts_that_never_end_do_not_starve_a_stream(replica_lab: Lab, max_gap_s: float) -> None:
    lab = streaming(replica_lab, max_chunk=64, min_chunk=16, max_gap_s=max_gap_s)
    keep_waiting(lab, 30.0, 8 * 64, leased=True)
    stream = lab.got["stream"]
    assert max(stream.gaps_s) <= max_gap_s + 1e-6
    elapsed = stream.token_times[-1] - stream.token_times[0]
    assert elapsed / (len(stream.tokens) - 1) <= SLACK.tpot_s  # its TPOT target is met all the same
    assert sum(record.finish is not None for record in lab.got.values()) > 20  # and prompts are served


def test_sch_5_one_long_prompt_and_one_stream(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, steps=4, max_chunk=64, min_chunk=16, max_gap_s=0.4)
    lab.send(LeaseGranted(100.0))
    lab.arrive("prompt", 1000, 2)
    lab.finish()
    assert max(lab.got["stream"].gaps_s) <= 0.4 + 1e-6


def test_overdue_prompts_get_a_bounded_share_that_is_counted(replica_lab: Lab) -> None:
    """A stream that can never keep its target has no slack: prompts wait until overdue, then share the time."""
    lab = replica_lab(config=ReplicaCoreConfig(max_chunk=64, min_chunk=16, overdraft_share=0.5))
    lab.arrive("stream", 8, 900, slo=Slo(tpot_s=0.001))
    lab.step()
    began = lab.now
    lab.arrive("prompt", 256, 1, slo=Slo(ttft_s=0.5))
    while lab.got["prompt"].finish is None:
        assert phase_of(lab) is Phase.DECODE or lab.now - began >= 0.5
        lab.step()
    prefill = [batch for _, batch in lab.batches[1:] if batch.phase is Phase.PREFILL]
    assert [len(batch.chunks[0].token_ids) for batch in prefill] == [64] * 4
    took = lab.now - began - 0.5
    assert 1.7 < took / sum(lab.duration(batch) for batch in prefill) < 2.5  # about half of the time
    view = lab.core.view(lab.now, "r", "i")
    assert view.overdraft_s == pytest.approx(sum(lab.duration(batch) for batch in prefill))
    assert max(lab.got["stream"].gaps_s) < 0.1  # one chunk and one decode step
    lab.finish()


def test_an_overdue_prompt_is_served_without_a_lease_out_of_slack_first(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, steps=40)
    lab.arrive("prompt", 64, 1, slo=Slo(ttft_s=0.5))
    while lab.got["prompt"].finish is None:
        lab.step()
    assert lab.got["prompt"].usage.queue_s == pytest.approx(0.5, abs=0.05)
    assert lab.core.state.counters.overdraft_s == 0.0


def test_a_stream_before_its_first_decode_step_is_covered_by_its_ttft_target(replica_lab: Lab) -> None:
    """The switch wait counts into TTFT (EcoServe §3.2): a window ends in time for those that it started."""
    config = ReplicaCoreConfig(max_chunk=64, min_chunk=16, max_gap_s=60.0)
    lab = replica_lab(config=config, num_blocks=400, block_size=16)
    lab.send(LeaseGranted(100.0))
    lab.arrive("first", 32, 20, slo=Slo(ttft_s=1.0))
    for index in range(4):
        lab.arrive(f"p{index}", 500, 1, slo=Slo(ttft_s=30.0))
    lab.finish()
    usage = lab.got["first"].usage
    assert usage.switch_wait_s > 0.5  # the window went on for the other prompts
    assert usage.queue_s + usage.prefill_s + usage.switch_wait_s <= 1.0
    assert lab.got["first"].token_times[0] - 100.0 + usage.switch_wait_s <= 1.0


def test_prefill_and_decode_roles_put_their_phase_first(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, role=Role.PREFILL)
    lab.arrive("p", 64)
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()
    lab = replica_lab(Role.DECODE, num_blocks=400)
    lab.arrive("stream", 8, 900, slo=Slo(tpot_s=0.015))
    lab.step()
    lab.arrive("p", 600)
    lab.step()
    assert phase_of(lab) is Phase.DECODE  # the stream has no slack for it
    lab.send(ClientGone("stream"))
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()


def test_a_decode_replica_prefills_in_the_slack_of_its_streams(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, role=Role.DECODE)
    record = lab.arrive("fallback", 64)
    lab.step()
    assert phase_of(lab) is Phase.PREFILL
    lab.finish()
    assert record.usage.prefill_s < 1.0
    assert max(lab.got["stream"].gaps_s) < 1.0


def test_a_whole_request_on_a_prefill_replica_gets_a_step_each_gap(replica_lab: Lab) -> None:
    lab = streaming(replica_lab, role=Role.PREFILL, max_gap_s=0.2, max_chunk=64)
    for index in range(20):
        lab.arrive(f"p{index}", 100, 1)
    lab.finish()
    assert max(lab.got["stream"].gaps_s) < 0.5


def test_a_changed_role_decides_from_the_next_step_on(replica_lab: Lab) -> None:
    lab = streaming(replica_lab)
    lab.send(LeaseGranted(100.0))
    lab.send(RoleAssigned(Role.MIXED))
    lab.arrive("p", 64, 30)
    lab.step()
    assert phase_of(lab) is Phase.MIXED
    lab.send(RoleAssigned(Role.ALTERNATING))
    assert lab.core.view(lab.now, "r", "i").lease_left_s == BRIDGE_LEASE_S  # for the rest of p, not the 100 s of before
    lab.step()
    assert phase_of(lab) in {Phase.PREFILL, Phase.DECODE}
    lab.finish()
