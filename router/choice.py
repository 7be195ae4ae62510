"""One choice of an answer: a sequence's tokens turned into text that may be shown, piece by piece.

Streamed and non-streamed answers both go through this code token by token, so they cannot differ.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from contracts.batch import TokenLogprobs
from contracts.replica_io import SequenceOutput
from contracts.request import FinishReason
from router.detokenizer import new_detokenizer
from router.stop_strings import StopStrings
from router.token_table import TokenTable


class ShownToken(NamedTuple):
    """One token whose text was shown: what it added to the text, at which offset in characters."""

    token_id: int
    text: str
    offset: int
    logprobs: TokenLogprobs | None


class Choice:
    """Mutable record of one sequence. `take` returns what became showable since the last `take`.

    `num_tokens` counts generated tokens, the one that ended the sequence included. `finish_reason` is set once, by
    the replica's end of the sequence or by a stop string; tokens after that are ignored. A token is shown when the
    first character of its text is; the tokens of a stop string and the end token never are. With `shows_tokens` false
    only text is shown, and `take` returns no tokens.
    """

    def __init__(
        self, table: TokenTable, *, stops: tuple[str, ...], min_tokens: int, shows_tokens: bool = True
    ) -> None:
        self._shows_tokens = shows_tokens
        self._is_plain = not stops and not shows_tokens
        self._detokenizer = new_detokenizer(table)
        self._stops = StopStrings(stops)
        self._min_tokens = min_tokens
        self._produced = 0
        self._released = 0
        self._text: list[str] = []
        self._waiting: deque[ShownToken] = deque()
        self.prompt_logprobs: dict[int, TokenLogprobs] = {}
        self.num_tokens = 0
        self.finish_reason: FinishReason | None = None

    def push(self, output: SequenceOutput) -> bool:
        """Takes in new tokens. True when a stop string ended the choice, so that the replica must be told."""
        if self._is_plain and output.finish is None and self.finish_reason is None:
            self._add_plain(output.token_ids)
            return False
        for part in output.prompt_logprobs:
            self.prompt_logprobs.update(enumerate(part.entries, part.first))
        for position, token_id in enumerate(output.token_ids):
            if self.finish_reason is not None:
                return False
            self.num_tokens += 1
            is_end = output.stop_token_id is not None and position == len(output.token_ids) - 1
            if is_end:
                break
            logprobs = output.logprobs[position] if position < len(output.logprobs) else None
            self._add(token_id, self._detokenizer.push(token_id), logprobs)
            if self._stops.matched is not None:
                self._end(FinishReason.STOP)
                return output.finish is None
        if output.finish is not None and self.finish_reason is None:
            self._flush()
            self._end(FinishReason.STOP if self._stops.matched is not None else output.finish)
        return False

    def take(self) -> tuple[str, list[ShownToken]]:
        """Text and tokens that became showable, in order; nothing before there is text, or the end."""
        if not self._text and self.finish_reason is None:
            return "", []
        text = "".join(self._text)
        self._text.clear()
        tokens = []
        while self._waiting and self._is_shown(self._waiting[0]):
            tokens.append(self._waiting.popleft())
        return text, tokens

    def take_text(self) -> str:
        """As `take`, without the tokens."""
        text = "".join(self._text)
        self._text.clear()
        return text

    def _add_plain(self, token_ids: tuple[int, ...]) -> None:
        """All there is to do in the middle of a sequence without stop strings whose tokens are not shown."""
        self.num_tokens += len(token_ids)
        for token_id in token_ids:
            text = self._detokenizer.push(token_id)
            if text:
                self._text.append(text)

    def _add(self, token_id: int, text: str, logprobs: TokenLogprobs | None) -> None:
        if self._shows_tokens:
            self._waiting.append(ShownToken(token_id, text, self._produced, logprobs))
        self._produced += len(text)
        if text:
            self._release(self._stops.push(text, may_stop=self.num_tokens >= self._min_tokens))

    def _flush(self) -> None:
        """No token follows: an unfinished character becomes U+FFFD (and may itself complete a stop string)."""
        rest = self._detokenizer.finish()
        if rest:
            self._produced += len(rest)
            self._release(self._stops.push(rest, may_stop=self.num_tokens >= self._min_tokens))
        if self._stops.matched is None:
            self._release(self._stops.flush())

    def _release(self, text: str) -> None:
        if text:
            self._text.append(text)
            self._released += len(text)

    def _end(self, reason: FinishReason) -> None:
        self.finish_reason = reason

    def _is_shown(self, token: ShownToken) -> bool:
        """Tokens without text of their own (part of a character) go with the text before them."""
        return token.offset < self._released if token.text else token.offset <= self._released
