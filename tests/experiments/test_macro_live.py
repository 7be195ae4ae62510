"""The arithmetic of the live comparison, on requests written down by hand."""

from __future__ import annotations

import itertools
import math

from contracts.request import Slo
from experiments.bandwidth_sweep.seen import Seen
from experiments.macro_live.figures import Served, figures, goodput, jain, middle, quantile, recovery_s
from experiments.macro_live.table import table
from experiments.macro_live.workload import HEAVY, LIGHT, asked

SLO = Slo(ttft_s=1.0, tpot_s=0.1)


def served(at_s: float, ttft_s: float, *, switch_s: float = 0.0, tpot_s: float = 0.05, key: str = HEAVY) -> Served:
    seen = Seen(output_tokens=11, ttft_s=ttft_s, switch_wait_s=switch_s, tpot_s=tpot_s)
    return Served(at_s=at_s, key=key, max_gap_s=0.2, seen=seen)


def failed(at_s: float) -> Served:
    return Served(at_s=at_s, key=HEAVY, max_gap_s=0.0, seen=Seen(error="503"))


def test_each_clock_judges_by_its_own_times() -> None:
    long_switch = served(0.0, 0.5, switch_s=0.7, tpot_s=0.08)  # 1.2 s until it decodes, then 0.01 s a token
    slow = served(1.0, 0.5, switch_s=0.4, tpot_s=0.12)  # 0.08 s a token without the wait
    found = figures([long_switch, slow], SLO, 2.0)
    assert (found.on_time, found.on_time_decode) == (0.5, 0.5)
    assert math.isclose(found.ready_p99_s, 1.2)
    assert math.isclose(found.decode_tpot_p99_s, 0.08)
    assert found.tpot_p99_s == 0.12


def test_a_failed_request_is_late_and_has_no_times() -> None:
    found = figures([served(0.0, 0.5), failed(1.0)], SLO, 2.0)
    assert (found.on_time, found.failed, found.max_wait_s) == (0.5, 0.5, 0.5)


def test_jain_compares_the_shares_on_time_of_the_keys() -> None:
    assert jain([0.7, 0.7]) == 1.0
    assert jain([1.0, 0.0]) == 0.5
    assert math.isnan(jain([0.0, 0.0]))
    assert figures([served(0.0, 0.5), served(0.5, 2.0, key=LIGHT)], SLO, 1.0).jain == 0.5


def test_recovery_runs_from_the_first_late_arrival_to_the_next_in_time() -> None:
    burst = [served(0.0, 0.1), served(1.0, 3.0), failed(2.0), served(4.5, 0.2), served(6.0, 2.0), served(7.0, 0.1)]
    assert recovery_s(burst, 1.0, 10.0) == 3.5
    assert recovery_s([*burst, served(8.0, 5.0)], 1.0, 20.0) == 12.0
    assert recovery_s([served(0.0, 0.1)], 1.0, 10.0) == 0.0


def test_quantiles_are_values_that_were_seen() -> None:
    assert [quantile([4.0, 1.0, None, 3.0, 2.0], share) for share in (0.0, 0.5, 0.9, 1.0)] == [1.0, 2.0, 4.0, 4.0]
    assert math.isnan(quantile([None], 0.5))


def test_goodput_ends_at_the_first_rate_that_is_missed() -> None:
    good, bad = figures([served(0.0, 0.5)], SLO, 1.0), figures([served(0.0, 2.0)], SLO, 1.0)
    assert goodput({1.0: [good, good, bad], 2.0: [bad, bad, good], 4.0: [good]}, "on_time") == 1.0
    assert goodput({1.0: [bad]}, "on_time") == 0.0
    assert middle([good, bad, bad], "ttft_p50_s") == (2.0, 0.5, 2.0)


def test_the_table_has_a_row_for_each_point_and_the_spread_in_its_cells() -> None:
    repeats = [figures([served(0.0, ttft_s)], SLO, 1.0) for ttft_s in (0.2, 0.5, 2.0)]
    shown = table({("poisson", "phased", 1.0): repeats})
    assert "| poisson | 1 | phased | 3 | 100 (0-100) |" in shown
    assert "0.50 (0.20-2.00)" in shown
    assert shown.endswith("| poisson | phased | 1 | 1 |")


def test_the_load_is_the_same_for_all_and_bursty_where_it_says_so() -> None:
    assert asked("bursty", 2.0, 30.0, 1) == asked("bursty", 2.0, 30.0, 1)
    assert asked("bursty", 2.0, 30.0, 1) != asked("bursty", 2.0, 30.0, 2)
    variation = {}
    for load in ("poisson", "bursty"):
        found = asked(load, 20.0, 400.0, 3)
        gaps = [b.at_s - a.at_s for a, b in itertools.pairwise(found)]
        mean = sum(gaps) / len(gaps)
        variation[load] = math.sqrt(sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) / mean
        assert {one.key for one in found} == {HEAVY, LIGHT}
    assert abs(variation["poisson"] - 1.0) < 0.1
    assert abs(variation["bursty"] - 2.0) < 0.2
