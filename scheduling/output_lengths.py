"""How long outputs are, by how long their prompts are. Constant memory.

When the mix of requests changes, what arrives now says what is to come before any of it has ended, if requests with
such prompts were seen before: code completions have long prompts and short outputs, chats the reverse.
"""

from __future__ import annotations

from dataclasses import dataclass

MOST = 256
"""Arrivals of a kind after which older ones count half."""
LEAST_ENDS = 8
MOSTLY_ENDED = 0.7
"""Before this share of the arrivals of a kind has ended it is mainly the short ones that did."""
LARGEST_KIND = 24


@dataclass(slots=True)
class _Kind:
    arrived: float = 0.0
    ended: float = 0.0
    tokens: float = 0.0


class OutputLengths:
    """Kinds of prompts are powers of two of their length."""

    __slots__ = ("_kinds",)

    def __init__(self) -> None:
        self._kinds = [_Kind() for _ in range(LARGEST_KIND + 1)]

    def arrived(self, prompt_tokens: int, num_sequences: float) -> float | None:
        """Count an arrival; returns the mean output to expect of it, None while too few of its kind have ended."""
        kind = self._of(prompt_tokens)
        expected = None
        if kind.ended >= LEAST_ENDS and kind.ended >= MOSTLY_ENDED * kind.arrived:
            expected = kind.tokens / kind.ended
        kind.arrived += num_sequences
        if kind.arrived > MOST:
            kind.arrived, kind.ended, kind.tokens = kind.arrived / 2, kind.ended / 2, kind.tokens / 2
        return expected

    def ended(self, prompt_tokens: int, output_tokens: float) -> None:
        """A sequence ended by itself after so many tokens."""
        kind = self._of(prompt_tokens)
        kind.ended += 1.0
        kind.tokens += output_tokens

    def _of(self, prompt_tokens: int) -> _Kind:
        return self._kinds[min(LARGEST_KIND, prompt_tokens.bit_length())]
