"""What arrived during one window of time: how much, how long, with which targets. Constant memory."""

from __future__ import annotations

import math

from contracts.cluster_io import ClientRequestArrived
from scheduling.window_mean import WindowMean


class RecentArrivals:
    """Sums over the last `window_s`. `now` never goes back."""

    def __init__(self, window_s: float) -> None:
        self.window_s = window_s
        self._prompts = WindowMean(window_s)
        self._squares = WindowMean(window_s)
        self._cached = WindowMean(window_s)
        self._expected = WindowMean(window_s)
        self._ttft = WindowMean(window_s)
        self._tpot = WindowMean(window_s)

    def arrived(self, asked: ClientRequestArrived, expected_output: float | None, now: float) -> None:
        """A request came; `expected_output` tokens are known to follow such prompts, None: not known."""
        num = float(asked.num_sequences)
        self._prompts.add(now, asked.prompt_tokens, num)
        self._squares.add(now, float(asked.prompt_tokens) ** 2, num)
        self._ttft.add(now, asked.slo.ttft_s, num)
        self._tpot.add(now, asked.slo.tpot_s, num)
        if expected_output is not None:
            self._expected.add(now, expected_output, num)

    def placed(self, cached_tokens: int, now: float) -> None:
        """So many tokens of a prompt were expected in the cache where it was placed."""
        self._cached.add(now, cached_tokens)

    def count(self, now: float) -> float:
        """Sequences."""
        return self._prompts.weight(now)

    def prompt(self, now: float) -> float | None:
        """Mean tokens; None without arrivals."""
        return self._prompts.mean(now)

    def spread(self, now: float) -> float:
        """Standard deviation of the prompts, tokens."""
        mean = self._prompts.mean(now) or 0.0
        return math.sqrt(max(0.0, (self._squares.mean(now) or 0.0) - mean * mean))

    def cached(self, now: float) -> float:
        """Mean tokens that were expected to be cached."""
        return self._cached.mean(now) or 0.0

    def expected_output(self, now: float) -> tuple[float, float]:
        """Mean of what is known to follow such prompts, and the share of arrivals of which it is known."""
        count = self.count(now)
        known = min(1.0, self._expected.weight(now) / count) if count > 0.0 else 0.0
        return self._expected.mean(now) or 0.0, known

    def targets(self, now: float, ttft_s: float, tpot_s: float) -> tuple[float, float]:
        """Mean TTFT and TPOT targets; the given ones without arrivals."""
        return self._ttft.mean(now) or ttft_s, self._tpot.mean(now) or tpot_s


def agree(few: RecentArrivals, many: RecentArrivals, seconds: float, now: float, errors: float) -> bool:
    """Whether the shorter window could be a part of the longer one, of which `seconds` have passed: count and mean
    prompt differ by at most so many standard errors."""
    count, share = few.count(now), min(1.0, few.window_s / seconds)
    expected = many.count(now) * share
    if abs(count - expected) > errors * math.sqrt(max(1.0, expected)):
        return False
    short, long = few.prompt(now), many.prompt(now)
    if short is None or long is None:
        return True
    return abs(short - long) <= errors * max(many.spread(now), 1.0) / math.sqrt(max(1.0, count))
