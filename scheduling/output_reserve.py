"""How much output to expect: the observed distribution of output lengths, as blocks to keep free at admission."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque

from scheduling.config import ReplicaCoreConfig
from scheduling.sequence import Sequence

PRIOR_TOKENS = 64


class OutputLengths:
    """The last `window` output lengths in tokens."""

    __slots__ = ("_ordered", "_recent", "_window")

    def __init__(self, window: int = 512) -> None:
        self._window = window
        self._recent: deque[int] = deque()
        self._ordered: list[int] = []

    def observe(self, length: int) -> None:
        """One sequence finished by itself (stop or length) after `length` tokens."""
        self._recent.append(length)
        insort(self._ordered, length)
        if len(self._recent) > self._window:
            del self._ordered[bisect_right(self._ordered, self._recent.popleft()) - 1]

    def expect(self, produced: int, quantile: float) -> int:
        """Total length at `quantile`, among those that were longer than `produced`.

        Without any such observation: `PRIOR_TOKENS` more than produced.
        """
        ordered = self._ordered
        first = bisect_right(ordered, produced)
        longer = len(ordered) - first
        if longer == 0:
            return produced + PRIOR_TOKENS
        return ordered[min(len(ordered) - 1, first + int(quantile * longer))]


def growth_blocks(sequence: Sequence, lengths: OutputLengths, config: ReplicaCoreConfig, block_size: int) -> int:
    """Blocks the sequence is expected to take beyond those it holds (or, waiting, needs to start).

    Each preemption halves the risk accepted, and the last one allowed removes it: a sequence preempted
    `max_preemptions` times is counted with all the output it may still produce. Admission keeps the sum over all
    running sequences free, so such a sequence is never preempted again (see `scheduling.preemption`). A sequence whose
    KV goes to another replica produces one token here, which needs no KV.
    """
    if sequence.sends:
        return 0
    total, num_tokens = sequence.max_output, len(sequence.tokens)
    if sequence.preemptions < config.max_preemptions:
        risk = 1.0 - config.output_reserve_quantile
        if sequence.preemptions:
            risk /= 2.0**sequence.preemptions
        total = min(total, lengths.expect(num_tokens - sequence.num_prompt, 1.0 - risk))
    positions = sequence.num_prompt + total - 1  # the last output token is never fed back, so it needs no KV
    held = len(sequence.blocks) or -(-num_tokens // block_size)
    return max(0, -(-positions // block_size) - held)
