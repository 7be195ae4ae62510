"""A request whose output was begun elsewhere goes on as if nothing had happened, in every role."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.batch import SequenceStart
from contracts.phase import Role
from contracts.replica_io import Emit
from contracts.request import FinishReason, SamplingParams, Slo
from scheduling.config import ReplicaCoreConfig

Lab = Any
PROMPT = tuple(range(3, 25))


def output_of(lab: Lab, count: int) -> tuple[int, ...]:
    output: tuple[int, ...] = lab.engine.expected_output(
        SequenceStart("x", PROMPT, SamplingParams(temperature=0.0)), count
    )
    return output


@pytest.mark.parametrize("role", list(Role))
@pytest.mark.parametrize("made", [1, 4, 9])
def test_it_goes_on_where_it_was(replica_lab: Any, role: Role, made: int) -> None:
    lab = replica_lab(role)
    output = output_of(lab, 10)
    record = lab.arrive("a", PROMPT, 10, output=output[:made])
    assert lab.in_flight.started[0].output_token_ids == output[:made]
    lab.finish()
    assert tuple(record.tokens) == output[made:]
    assert record.finish is FinishReason.LENGTH
    assert record.usage.output_tokens == 10
    assert record.usage.prompt_tokens == 22
    emitted = [o for action in lab.actions if isinstance(action, Emit) for o in action.outputs]
    assert [o.first_index for o in emitted] == list(range(made, 10))


def test_it_survives_preemption(replica_lab: Any) -> None:
    lab = replica_lab(num_blocks=24, config=ReplicaCoreConfig(output_reserve_quantile=0.0))
    for index in range(3):
        lab.arrive(f"short{index}", 3, 5)
        lab.run()
    output = output_of(lab, 3)
    for index in range(3):
        lab.arrive(f"r{index}", PROMPT, 40, output=output)
    lab.finish()
    assert lab.core.state.counters.preemptions > 0


def test_what_has_ended_already_is_refused(replica_lab: Any) -> None:
    lab = replica_lab()
    output = output_of(lab, 6)
    lab.arrive("long enough", PROMPT, 6, output=output)
    eos = lab.spec.eos_token_ids[0]
    lab.arrive("eos", PROMPT, 20, output=(*output[:3], eos))
    stop = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(output[2],))
    lab.arrive("stop", PROMPT, sampling=stop, output=output[:4])
    assert {error.param for error in lab.refused.values()} == {"output_token_ids"}
    assert sorted(lab.refused) == ["eos", "long enough", "stop"]
    assert all(error.status == 400 for error in lab.refused.values())


def test_an_end_token_that_ended_nothing_is_no_reason(replica_lab: Any) -> None:
    lab = replica_lab()
    output = output_of(lab, 6)
    banned = SamplingParams(temperature=0.0, max_tokens=20, stop_token_ids=(output[2],), min_tokens=10)
    lab.arrive("min_tokens", PROMPT, sampling=banned, output=output[:4])
    ignored = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)
    lab.arrive("ignore_eos", PROMPT, sampling=ignored, output=(*output[:3], lab.spec.eos_token_ids[0]))
    assert lab.refused == {}
    lab.run()


def test_tokens_made_elsewhere_earn_no_slack(replica_lab: Any) -> None:
    lab = replica_lab()
    lab.arrive("a", PROMPT, 60, output=output_of(lab, 50), slo=Slo(tpot_s=1.0))
    lab.step()
    (slack,) = {round(value, 6) for value in lab.core.view(lab.now, "r", "1").slack_quantiles_s}
    assert slack == 1.0
    lab.finish()


def test_its_prompt_logprobs_were_said_before(replica_lab: Any) -> None:
    lab = replica_lab()
    sampling = SamplingParams(temperature=0.0, max_tokens=10, prompt_logprobs=0)
    record = lab.arrive("a", PROMPT, sampling=sampling, output=output_of(lab, 2))
    lab.finish()
    assert record.prompt_logprobs == {}
