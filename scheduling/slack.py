"""Slack of running streams ("saved TPOT", EcoServe Algorithm 1) and the rules that turn many into one.

`slack = tokens_sent * S_TPOT - (now - first_decode_time)`: how long the stream can do without its next token. A stream
whose first decode step has not begun has no clock yet; the TTFT target covers that wait, the switch wait.
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from scheduling.sequence import Sequence


def slacks(streams: Iterable[Sequence], now: float) -> list[float]:
    """Slack in seconds of every stream whose clock runs, smallest first."""
    ordered = [stream.deadline - now for stream in streams if stream.first_decode_at is not None]
    ordered.sort()
    return ordered


def switch_left_s(streams: Iterable[Sequence], now: float) -> float | None:
    """What is left of the TTFT target of the tightest stream that waits for its first decode step: the switch wait
    counts into it (EcoServe §3.2). A target already missed protects nothing. None without any."""
    left = [s.ttft_deadline - now for s in streams if s.first_decode_at is None and s.ttft_deadline > now]
    return min(left) if left else None


def lower_quantile(ordered: Seq[float], level: float) -> float:
    """The value at `level` of a sorted, non-empty list, rounded down to a value that occurs: never too generous."""
    return ordered[int(level * (len(ordered) - 1))]


def aggregate(ordered: Seq[float], level: float | None) -> float:
    """One allowance from the sorted, non-empty slacks: the quantile at `level` (0 protects every stream), None: the
    mean (EcoServe's paper)."""
    return sum(ordered) / len(ordered) if level is None else lower_quantile(ordered, level)
