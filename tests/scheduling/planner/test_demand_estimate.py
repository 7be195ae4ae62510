"""What the fleet is asked for, told from arrivals, ends and what runs."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.phase import Role
from scheduling.fleet_site import decoding_now
from scheduling.fleet_workload import MOST_SURPRISE, PRIOR_OUTPUT_TOKENS, DemandEstimate

WINDOW_S = 10.0


@pytest.fixture
def estimate() -> DemandEstimate:
    return DemandEstimate(WINDOW_S)


def steady(estimate: DemandEstimate, cluster: Any, until_s: float, per_s: float = 4.0) -> None:
    for index in range(int(until_s * per_s)):
        now = index / per_s
        estimate.arrived(cluster.arrived(f"r{index}", prompt_tokens=100), now)
        estimate.ended(100, 50.0, now)


def test_nothing_asked_for_is_no_demand(estimate: DemandEstimate, cluster: Any) -> None:
    assert estimate.at(0.0, 0, 0.0, 0.001) is None
    estimate.arrived(cluster.arrived("r"), 1.0)
    assert estimate.at(1.0 + 3 * WINDOW_S, 5, 0.01, 0.001) is None


def test_the_first_second_is_no_flood(estimate: DemandEstimate, cluster: Any) -> None:
    estimate.arrived(cluster.arrived("r"), 100.0)
    found = estimate.at(100.001, 0, 0.0, 0.001)
    assert found is not None
    assert found.rate <= 1.0
    assert found.output_tokens == PRIOR_OUTPUT_TOKENS


def test_a_steady_rate_is_found(estimate: DemandEstimate, cluster: Any) -> None:
    steady(estimate, cluster, 60.0)
    found = estimate.at(60.0, 0, 0.0, 0.001)
    assert found is not None
    assert found.rate == pytest.approx(4.0, rel=0.1)
    assert found.prompt_tokens == found.long_prompt_tokens == 100.0
    assert found.output_tokens == 50.0
    assert (found.slo.ttft_s, found.slo.tpot_s) == pytest.approx((1.0, 0.1))


def test_long_streams_count_before_they_end(estimate: DemandEstimate, cluster: Any) -> None:
    steady(estimate, cluster, 60.0)
    found = estimate.at(60.0, 10, 0.01, 0.001)  # 10 streams at 10 ms: 1000 tokens/s for 4 requests/s, 60 % of the time
    assert found is not None
    assert found.output_tokens == pytest.approx(0.6 * 1000 / 4, rel=0.2)
    little = estimate.at(60.0, 4, 0.01, 0.001)
    assert little is not None
    assert little.output_tokens == 50.0


def test_a_burst_that_still_runs_is_believed_only_so_far(estimate: DemandEstimate, cluster: Any) -> None:
    steady(estimate, cluster, 60.0)
    estimate.arrived(cluster.arrived("late", prompt_tokens=100), 69.0)
    found = estimate.at(69.9, 4000, 0.05, 0.001)
    assert found is not None
    assert found.output_tokens <= MOST_SURPRISE * 50.0


def test_cached_tokens_are_not_computed(estimate: DemandEstimate, cluster: Any) -> None:
    estimate.arrived(cluster.arrived("r", prompt_tokens=100), 0.0)
    estimate.placed(60, 0.0)
    found = estimate.at(1.0, 0, 0.0, 0.001)
    assert found is not None
    assert (found.prompt_tokens, found.sent_tokens) == (40.0, 100.0)
    estimate.placed(1000, 1.0)
    found = estimate.at(1.0, 0, 0.0, 0.001)
    assert found is not None
    assert found.prompt_tokens == 1.0


def test_only_what_decodes_counts_as_decoding(cluster: Any) -> None:
    views = [
        cluster.view("p", role=Role.PREFILL, running=9, decode_step_s=0.0),
        cluster.view("q", role=Role.PREFILL, running=1, decode_step_s=0.01),
        cluster.view("d", role=Role.DECODE, running=10, receiving=2, decode_step_s=0.04),
        cluster.view("e", role=Role.DECODE, running=0, decode_step_s=0.5),
    ]
    streams, step_s = decoding_now(views)
    assert streams == 9
    assert streams / step_s == pytest.approx(1 / 0.01 + 8 / 0.04)
    assert decoding_now(views[:1]) == (0, 0.0)


def test_an_estimate_is_young_for_one_window(estimate: DemandEstimate, cluster: Any) -> None:
    assert estimate.is_young(5.0)
    estimate.arrived(cluster.arrived("r"), 5.0)
    assert estimate.is_young(5.0 + WINDOW_S - 0.1)
    assert not estimate.is_young(5.0 + WINDOW_S)
