"""Slack of running streams ("saved TPOT", EcoServe Algorithm 1) and the rules that turn many into one.

`slack = tokens_sent * S_TPOT - (now - first_decode_time)`: how long the stream can do without its next token. A stream
whose first decode step has not begun has no clock yet; the TTFT target covers it (design §2, switch wait).
"""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq

from scheduling.config import SlackRule
from scheduling.sequence import Sequence


def slacks(streams: Iterable[Sequence], now: float) -> list[float]:
    """Slack in seconds of every stream whose clock runs, smallest first."""
    return sorted(stream.deadline - now for stream in streams if stream.first_decode_at is not None)


def lower_quantile(ordered: Seq[float], level: float) -> float:
    """The value at `level` of a sorted, non-empty list, rounded down to a value that occurs: never too generous."""
    return ordered[int(level * (len(ordered) - 1))]


def aggregate(ordered: Seq[float], rule: SlackRule, quantile: float) -> float:
    """One allowance from the sorted, non-empty slacks. `min` protects every stream; `mean` is EcoServe's paper."""
    if rule == "min":
        return ordered[0]
    if rule == "quantile":
        return lower_quantile(ordered, quantile)
    if rule == "mean":
        return sum(ordered) / len(ordered)
    return ordered[-1]
