"""Predicted TTFT beside the one that came, with exact costs: prompts that wait share steps, and are told so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from contracts.errors import ErrorInfo
from contracts.plan import Outcome
from contracts.request import Slo
from scheduling.config import ClusterCoreConfig, ReplicaCoreConfig
from simulator.arrivals import Gamma
from simulator.flight import Flight
from simulator.lengths import Constant
from simulator.run import Run, simulate
from simulator.scenario import Scenario
from simulator.scenarios import deployed, small, under

FAR = Slo(ttft_s=60.0, tpot_s=0.2)
RULES = ["min", "mean", "sarathi(512)", "deadline", "prefill_priority"]


@pytest.fixture
def queued() -> Callable[[str, int, int], Scenario]:
    """So many prompts of one length that come within two milliseconds to one replica."""

    def make(rule: str, tokens: int, count: int) -> Scenario:
        made = small(
            alternating=1,
            arrivals=Gamma(rate=count / 0.002, cv=0.0),
            num_requests=count,
            prompt=Constant(tokens=tokens),
            output=Constant(tokens=2),
            slo=FAR,
            noise=0.0,
            scheduling=ReplicaCoreConfig(max_running=256, max_chunk=1024, prefix_cache=False, max_gap_s=60.0),
            cluster=ClusterCoreConfig(prefill_chunk=1024, max_gap_s=60.0),
        )
        return under(made, rule)

    return make


@pytest.mark.parametrize("tokens", [20, 150, 1000, 3000])
@pytest.mark.parametrize("rule", RULES)
def test_the_last_of_a_queue_is_told_when_its_turn_comes(
    queued: Callable[[str, int, int], Scenario], rule: str, tokens: int
) -> None:
    """No later prompt joins its step, so that with exact costs what it is told must hold, however many wait."""
    for count in (4, 12):
        run = Run(queued(rule, tokens, count))
        told: dict[int, tuple[float, float | None]] = {}
        ended = run.collector.ended

        def note(
            flight: Flight,
            outcome: Outcome | None,
            error: ErrorInfo | None,
            told: dict[int, tuple[float, float | None]] = told,
            ended: Callable[[Flight, Outcome | None, ErrorInfo | None], None] = ended,
        ) -> None:
            assert flight.plan is not None
            assert outcome is not None
            told[flight.arrival.number] = (flight.plan.prediction.ttft_s, outcome.ttft_s)
            ended(flight, outcome, error)

        run.collector.ended = note  # type: ignore[method-assign]
        run.finish()
        predicted_s, real_s = told[count - 1]
        assert predicted_s == pytest.approx(real_s, rel=0.1)


@pytest.mark.slow
def test_half_of_a_loaded_fleets_requests_come_within_a_sixth_of_what_they_were_told() -> None:
    """The rest: prompts that come later and join the step, so that it ends later."""
    report = simulate(small(alternating=8, rate=24.0, duration_s=40.0, noise=0.0))
    assert report.prediction_error.p50 < 1 / 6
    assert report.usual.attained > 0.99


@pytest.mark.slow
def test_near_the_knee_mixed_replicas_tell_what_comes() -> None:
    """Prompts wait for seconds, some are late, steps cost whole tiles: the predictor errs, and plans with a margin."""
    report = simulate(small(mixed=2, rate=11.2, duration_s=40.0, **deployed("codellama2-34b", "l20", tp=4)))
    assert report.usual.ttft_s.p90 > 3.0
    assert report.prediction_error.p50 < 0.15
    assert report.usual.attained > 0.92


def test_a_prompt_handed_over_does_not_wait_for_the_step_of_the_replica_that_will_decode_it() -> None:
    """Its blocks there are reserved while that step runs."""
    report = simulate(small(prefill=1, decode=2, rate=2.0, duration_s=15.0, noise=0.0))
    assert report.prediction_error.p50 < 0.05
    assert report.usual.attained == 1.0
