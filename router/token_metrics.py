"""What is counted for every single token: plain numbers of one event loop, without locks, read at each scrape."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_GAP_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 1.0, 2.0)
_LABELS = (*map(str, _GAP_S), "+Inf")


class TokenMetrics(Collector):
    """Tokens generated, and the gaps between those of one sequence."""

    def __init__(self) -> None:
        self.num_tokens = 0
        self._gap_sum_s = 0.0
        self._gap_counts = [0] * len(_LABELS)

    def observe(self, num_new: int, gap_s: float | None) -> None:
        """An output of a sequence with new tokens, `gap_s` after the one before it (None: its first)."""
        self.num_tokens += num_new
        if gap_s is not None:
            self._gap_sum_s += gap_s
            self._gap_counts[bisect_left(_GAP_S, gap_s)] += 1

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        yield CounterMetricFamily("phaseserve_output_tokens", "Tokens generated.", value=self.num_tokens)
        buckets = list(zip(_LABELS, accumulate(self._gap_counts), strict=True))
        yield HistogramMetricFamily(
            "phaseserve_itl_seconds", "Gap between two tokens.", buckets=buckets, sum_value=self._gap_sum_s
        )
