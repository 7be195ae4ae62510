"""Stop strings over a stream of text: hold back what may become one, cut at the first that completes.

Character by character with one Knuth-Morris-Pratt state per stop string, so that the result cannot depend on how the
text was cut into chunks. The match that completes first wins; of two that complete on the same character, the longer.
"""

from __future__ import annotations


def _failure(pattern: str) -> list[int]:
    """KMP failure function: `failure[i]` is the longest proper border of `pattern[:i]`, for i in 0..len."""
    failure = [0] * (len(pattern) + 1)
    length = 0
    for i in range(1, len(pattern)):
        while length and pattern[i] != pattern[length]:
            length = failure[length]
        if pattern[i] == pattern[length]:
            length += 1
        failure[i + 1] = length
    return failure


class StopStrings:
    """Filters one sequence's text. `push` returns what may be shown; `matched` tells that a stop string completed."""

    __slots__ = ("_failures", "_held", "_patterns", "_states", "matched")

    def __init__(self, stops: tuple[str, ...]) -> None:
        self._patterns = stops
        self._failures = [_failure(stop) for stop in stops]
        self._states = [0] * len(stops)
        self._held = ""
        self.matched: str | None = None

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Text to release now. With `may_stop` false (min_tokens not reached) a completed match is ordinary text."""
        if not self._patterns:
            return text
        buffer = self._held + text
        offset = len(self._held)
        for position, char in enumerate(text):
            completed = self._advance(char)
            if completed and may_stop:
                end = offset + position + 1
                self.matched = max(completed, key=len)
                self._held = ""
                return buffer[: end - len(self.matched)]
        keep = max(self._states)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep]

    def flush(self) -> str:
        """The held-back tail, once no more text can come."""
        held, self._held = self._held, ""
        return held

    def _advance(self, char: str) -> list[str]:
        """Moves every state by one character; the stop strings that end with it."""
        completed = []
        for which, pattern in enumerate(self._patterns):
            state = self._states[which]
            failure = self._failures[which]
            while state and pattern[state] != char:
                state = failure[state]
            if pattern[state] == char:
                state += 1
            if state == len(pattern):
                completed.append(pattern)
                state = failure[state]
            self._states[which] = state
        return completed
