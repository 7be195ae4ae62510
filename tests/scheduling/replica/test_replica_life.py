"""The life of a request in one replica, in numbered steps."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.batch import Batch, SampledToken, StepResult
from contracts.errors import InvalidTransition
from contracts.phase import Phase, Role
from contracts.replica_io import ClientGone, DrainRequested, LeaseGranted, RunStep, StepDone, Woken
from contracts.request import FinishReason, SamplingParams
from scheduling.config import ReplicaCoreConfig

Lab = Any
ROLES = list(Role)


@pytest.mark.parametrize("role", ROLES)
def test_one_request_lives_and_leaves_nothing(replica_lab: Lab, role: Role) -> None:
    lab: Lab = replica_lab(role)
    record = lab.arrive("a", 10, max_tokens=5)  # 1 arrives: the first step starts at once
    assert str(lab.in_flight.phase) == Phase.PREFILL
    assert lab.in_flight.started[0].sequence_id == "a"
    lab.step()  # 2 the first token, and the decode that follows
    assert len(record.tokens) == 1
    assert str(lab.in_flight.phase) == Phase.DECODE
    lab.finish()  # 3 four more
    assert record.finish is FinishReason.LENGTH
    assert record.usage.output_tokens == 5
    assert record.usage.prompt_tokens == 10
    assert record.usage.switch_wait_s == 0.0
    lab.arrive("b", 3)  # 4 the engine hears about the end with the next batch
    assert lab.batches[-1][1].ended == ("a",)
    lab.finish()


@pytest.mark.parametrize("role", ROLES)
def test_many_requests_are_right_in_every_role(replica_lab: Lab, role: Role) -> None:
    lab = replica_lab(role, num_blocks=64)
    for index in range(12):
        lab.arrive(f"r{index}", 5 + 9 * index, max_tokens=3 + index)
        lab.send(LeaseGranted(1.0))
        lab.step()
    lab.finish()
    assert all(record.finish is FinishReason.LENGTH for record in lab.got.values())


def test_stop_tokens_end_a_sequence_but_not_before_min_tokens(replica_lab: Lab) -> None:
    lab = replica_lab()
    first = lab.arrive("probe", 8, max_tokens=12)
    lab.run()
    stop = first.tokens[3]
    where = first.tokens.index(stop)
    lab.arrive("early", lab.requests["probe"].prompt_token_ids, 12)
    sampling = SamplingParams(temperature=0.0, max_tokens=12, stop_token_ids=(stop,))
    record = lab.arrive("stop", lab.requests["probe"].prompt_token_ids, sampling=sampling)
    lab.finish()
    assert record.finish is FinishReason.STOP
    assert record.stop_token_id == stop
    assert record.tokens == first.tokens[: where + 1]


def test_eos_and_ignore_eos(replica_lab: Lab) -> None:
    lab = replica_lab(eos_every=2)
    stopped = lab.arrive("a", 8, max_tokens=200)
    sampling = SamplingParams(temperature=0.0, max_tokens=50, ignore_eos=True)
    ignored = lab.arrive("b", 8, sampling=sampling)
    patient = lab.arrive("c", 8, sampling=SamplingParams(temperature=0.0, max_tokens=50, min_tokens=30))
    lab.finish()
    assert stopped.finish is FinishReason.STOP
    assert stopped.stop_token_id == stopped.tokens[-1] == lab.spec.eos_token_ids[0]
    assert len(ignored.tokens) == 50
    assert lab.spec.eos_token_ids[0] in ignored.tokens
    assert len(patient.tokens) >= 30


def test_an_end_token_before_min_tokens_ends_nothing(replica_lab: Lab) -> None:
    lab = replica_lab()
    eos = lab.spec.eos_token_ids[0]
    step = lab.engine.step

    def only_eos(batch: Batch) -> StepResult:
        result: StepResult = step(batch)
        return StepResult(
            step_index=batch.step_index, sampled=tuple(SampledToken(s.sequence_id, eos) for s in result.sampled)
        )

    lab.engine.step = only_eos
    record = lab.arrive("a", 8, sampling=SamplingParams(temperature=0.0, max_tokens=20, min_tokens=3))
    lab.run()
    assert record.tokens == [eos] * 3
    assert record.finish is FinishReason.STOP


@pytest.mark.parametrize(
    ("prompt", "max_tokens", "param"),
    [(0, 4, "prompt"), (4, 0, "max_tokens"), (1020, 5, "max_tokens"), (100, 100, "max_tokens")],
)
def test_what_can_never_run_is_refused_on_arrival(replica_lab: Lab, prompt: int, max_tokens: int, param: str) -> None:
    lab = replica_lab(num_blocks=40)
    lab.arrive("a", prompt, max_tokens)
    assert lab.refused["a"].status == 400
    assert lab.refused["a"].param == param
    assert lab.in_flight is None


def test_what_just_fits_runs(replica_lab: Lab) -> None:
    lab = replica_lab(num_blocks=10, block_size=4, max_context=41)
    record = lab.arrive("a", 31, 10)  # 40 positions need KV: ten blocks
    lab.finish()
    assert len(record.tokens) == 10


def test_waiting_is_bounded_in_requests_and_tokens(replica_lab: Lab) -> None:
    config = ReplicaCoreConfig(max_running=1, max_waiting=3, max_waiting_tokens=50)
    lab = replica_lab(config=config)
    for index in range(6):
        lab.arrive(f"r{index}", 10)
    assert sorted(lab.refused) == ["r4", "r5"]
    assert lab.refused["r4"].status == 429
    assert lab.refused["r4"].retry_after_s >= 1.0
    lab.finish()
    lab.arrive("runs", 10)
    lab.arrive("alone", 60)  # longer than the bound, but nothing else waits
    lab.arrive("more", 1)
    assert "alone" not in lab.refused
    assert lab.refused["more"].status == 429
    lab.finish()


def test_the_same_id_twice_is_refused_and_harms_nothing(replica_lab: Lab) -> None:
    lab = replica_lab()
    lab.arrive("a", 10)
    first = lab.got["a"]
    lab.arrive("a", 10)
    assert lab.refused.pop("a").param == "request_id"
    lab.got["a"] = first
    lab.run()


def test_drain_refuses_new_finishes_old_and_says_so_once(replica_lab: Lab) -> None:
    lab = replica_lab()
    record = lab.arrive("a", 10)
    lab.send(DrainRequested())
    lab.arrive("late", 10)
    assert lab.refused["late"].status == 503
    assert not lab.drained
    lab.finish()
    assert record.finish is FinishReason.LENGTH
    assert lab.drained
    lab.send(DrainRequested())
    idle = replica_lab()
    idle.send(DrainRequested())
    assert idle.drained


def test_a_step_result_nobody_asked_for_is_our_bug(replica_lab: Lab) -> None:
    lab = replica_lab()
    lab.arrive("a", 10)
    batch = lab.in_flight
    result = lab.engine.step(batch)
    lab.core.handle(StepDone(result, 0.1), 101.0)
    with pytest.raises(InvalidTransition, match="step 0 ended"):
        lab.core.handle(StepDone(result, 0.1), 102.0)


def test_events_that_change_nothing_start_nothing(replica_lab: Lab) -> None:
    lab = replica_lab()
    assert lab.send(Woken()) == []
    assert lab.send(ClientGone("unknown")) == []
    actions = lab.core.handle(LeaseGranted(2.0), lab.now)
    assert not any(isinstance(action, RunStep) for action in actions)
