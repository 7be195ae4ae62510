"""The transfer bench's own arithmetic, and its ends over a real pair of processes."""

from __future__ import annotations

from pathlib import Path

import pytest

from experiments.transfer_bench.chapters import service
from experiments.transfer_bench.end import Shape, messages
from experiments.transfer_bench.figures import Followed, Hiding, Row, best, figures
from experiments.transfer_bench.memory_end import copy
from experiments.transfer_bench.mooncake_end import common
from experiments.transfer_bench.pair import EndError, Kind, Pair, Sample
from experiments.transfer_bench.report import Report
from experiments.transfer_bench.socket_end import rest
from experiments.transfer_bench.tables import Stride
from experiments.transfer_bench.vllm_pair import nixl_sums
from scheduling.link_estimate import LinkEstimate

CORES = 2


def sample(wall_s: float, cpu_s: float = 0.1, foreign_cpu_s: float = 0.0, num_bytes: int = 1_000_000_000) -> Sample:
    return Sample(num_bytes, wall_s, cpu_s, 2 * cpu_s, foreign_cpu_s, {}, {})


def test_spans_are_merged_within_a_layer_and_cut_into_messages() -> None:
    shape = Shape(num_layers=2, num_blocks=10, block_bytes=8)
    assert shape.spans([3, 4, 7]) == [(24, 16), (56, 8), (104, 16), (136, 8)]
    assert list(messages(shape.spans([3, 4, 7]), limit=20)) == [
        [(24, 16), (56, 4)],
        [(60, 4), (104, 16)],
        [(136, 8)],
    ]
    assert sum(length for message in messages(shape.spans([0]), 5) for _, length in message) == shape.bytes_of(1)


def test_a_stride_goes_through_the_whole_pool_before_it_comes_back() -> None:
    for scattered in (False, True):
        stride = Stride(10, scattered=scattered)
        first, second, third = (stride.take(5) for _ in range(3))
        assert sorted(first + second) == list(range(10))
        assert third == first
        stride.take(3)
        assert stride.take(4) == first[:4]  # the rest was too short
    with pytest.raises(ValueError):
        Stride(4).take(5)


def test_views_that_were_partly_sent() -> None:
    views = [memoryview(b"abc"), memoryview(b"de"), memoryview(b"f")]
    for gone in range(7):
        assert b"".join(rest(views, gone)) == b"abcdef"[gone:]


def test_pieces_that_are_cut_differently_on_both_sides() -> None:
    assert common([(0, 4), (10, 2)], [(100, 3), (200, 3)]) == [(0, 100, 3), (3, 200, 1), (10, 201, 2)]
    target = bytearray(6)
    copy([memoryview(b"abcd"), memoryview(b"ef")], [memoryview(target)[:3], memoryview(target)[3:]])
    assert target == b"abcdef"


def test_figures_are_medians_of_the_least_disturbed_samples() -> None:
    samples = [sample(1.0), sample(2.0), sample(4.0, foreign_cpu_s=4.0), sample(3.0)]
    kept = best(samples, 3, CORES)
    assert [one.wall_s for one in kept] == [1.0, 2.0, 3.0]
    own = figures(kept, CORES)
    assert (own.bytes_per_s, own.giver_cpu_s_per_gb, own.cpu_s_per_gb) == pytest.approx((0.5e9, 0.1, 0.3))
    assert own.cores == pytest.approx(0.15)
    row = Row("link", "tcp", "1 GB", own, figures([sample(1.0, 0.05)], CORES), link_bytes_per_s=1e9)
    assert (row.share, row.cpu_ratio, row.link_share) == pytest.approx((0.5, 2.0, 0.5))
    with pytest.raises(ValueError):
        figures([sample(1.0), sample(1.0, num_bytes=5)], CORES)


def test_hidden_share_beside_the_formula() -> None:
    """Ten layers of 0.1 s; each takes 0.05 s to send, so that only the last one is left over."""
    fast = Hiding(10_000, 10, prefill_s=1.0, bytes_per_s=20_000, latency_s=0.0, exposed_s=0.05, transfer_s=0.95)
    assert fast.predicted_exposed_s == pytest.approx(0.05)
    assert fast.hidden_share == pytest.approx(fast.predicted_hidden_share)
    slow = Hiding(10_000, 10, prefill_s=1.0, bytes_per_s=5_000, latency_s=0.0, exposed_s=1.1, transfer_s=2.0)
    assert slow.predicted_exposed_s == pytest.approx(0.2 + 9 * 0.1)
    assert slow.predicted_hidden_share == pytest.approx(0.45)


def test_after_how_many_measurements_an_estimate_is_good() -> None:
    followed = Followed(LinkEstimate(half_life_s=60.0, min_bytes=1), wanted=100e6)
    followed.estimate.add(1_000_000_000, 1.0, 0.0)
    for now in (1.0, 2.0, 3.0):
        followed.add([(100_000_000, 1.0)], now)
    assert followed.within(0.1) == 2
    assert len(followed.errors) == 3
    never = Followed(LinkEstimate(half_life_s=60.0, min_bytes=1), wanted=1.0)
    never.add([(100, 1.0)], 0.0)
    assert never.within(0.1) is None


def test_a_report_names_disturbed_rows_and_notes() -> None:
    report = Report(["head"])
    report.add(Row("loopback", "tcp", "1 GB", figures([sample(1.0, foreign_cpu_s=1.0)], CORES), None))
    report.note("something is missing")
    text = report.markdown()
    assert "| loopback | tcp | 1 GB | 1.000 |" in text
    assert "50% (disturbed)" in text
    assert "- something is missing" in text


def test_metrics_of_a_connector() -> None:
    text = 'vllm:nixl_xfer_time_seconds_sum{engine="0"} 0.25\nvllm:nixl_xfer_time_seconds_bucket{le="1"} 3\nother 1\n'
    assert nixl_sums(text) == {"xfer_time_seconds_sum": 0.25}


@pytest.mark.parametrize("kind", [Kind("socket", "socket_end"), Kind("memory", "memory_end"), service("tcp")])
def test_a_pair_hands_over_what_was_asked_for(kind: Kind, tmp_path: Path) -> None:
    shape = Shape(num_layers=2, num_blocks=8, block_bytes=4096)
    with Pair(kind, shape, (None, None), tmp_path) as pair:
        found = pair.hand_over([1, 2, 5], [4, 0, 7])
        pair.check([1, 2, 5], [4, 0, 7])
        with pytest.raises(EndError, match="not what was sent"):
            pair.check([1], [0])
    assert found.num_bytes == 3 * 2 * 4096
    assert found.wall_s > 0.0


def test_an_end_that_cannot_start_says_why(tmp_path: Path) -> None:
    with pytest.raises(EndError, match="transport"):
        Pair(service("none such"), Shape(1, 2, 4096), (None, None), tmp_path)
