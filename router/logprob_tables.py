"""Log probabilities as the two endpoints show them, aligned with the text that was shown."""

from __future__ import annotations

from collections.abc import Iterable

from contracts.batch import TokenLogprobs
from router.choice import ShownToken
from router.detokenizer import new_detokenizer
from router.generation import Prompt
from router.openai_reply import ChatLogprob, ChatLogprobs, TextLogprobs, TopLogprob
from router.token_table import TokenTable


def chat_logprobs(tokens: Iterable[ShownToken], table: TokenTable) -> ChatLogprobs:
    """One entry per token shown."""
    content = [
        ChatLogprob(
            token=table.label(token.token_id),
            logprob=token.logprobs.logprob,
            bytes=list(table.raw(token.token_id)),
            top_logprobs=[
                TopLogprob(token=table.label(other), logprob=logprob, bytes=list(table.raw(other)))
                for other, logprob in token.logprobs.top
            ],
        )
        for token in tokens
        if token.logprobs is not None
    ]
    return ChatLogprobs(content)


def text_logprobs(tokens: list[ShownToken], table: TokenTable, base: int) -> TextLogprobs:
    """Parallel arrays; `base` is where this choice's own text begins (the length of an echoed prompt)."""
    return TextLogprobs(
        tokens=[token.text for token in tokens],
        token_logprobs=[None if token.logprobs is None else token.logprobs.logprob for token in tokens],
        top_logprobs=[None if token.logprobs is None else _alternatives(token.logprobs, table) for token in tokens],
        text_offset=[base + token.offset for token in tokens],
    )


def joined(first: TextLogprobs, second: TextLogprobs) -> TextLogprobs:
    """The arrays of `first` followed by those of `second`."""
    return TextLogprobs(
        tokens=first.tokens + second.tokens,
        token_logprobs=first.token_logprobs + second.token_logprobs,
        top_logprobs=first.top_logprobs + second.top_logprobs,
        text_offset=first.text_offset + second.text_offset,
    )


class EchoedPrompt:
    """The prompt as it is echoed: its text, and each token's share of it."""

    def __init__(self, prompt: Prompt, table: TokenTable) -> None:
        self._table = table
        pieces = _pieces(prompt.token_ids, table, spell_special=True)
        if prompt.text is not None and "".join(pieces) != prompt.text:
            # Special tokens that the tokenizer added (BOS) are not in the client's text.
            pieces = _pieces(prompt.token_ids, table, spell_special=False)
        self.text = "".join(pieces) if prompt.text is None else prompt.text
        self._tokens: list[tuple[int, str]] = list(zip(prompt.token_ids, pieces, strict=True))

    def logprobs(self, known: dict[int, TokenLogprobs]) -> TextLogprobs:
        """Arrays over the prompt; the first token has no log probability."""
        shown, offset = [], 0
        for position, (token_id, text) in enumerate(self._tokens):
            shown.append(ShownToken(token_id, text, offset, known.get(position)))
            offset += len(text)
        return text_logprobs(shown, self._table, 0)


def _pieces(token_ids: tuple[int, ...], table: TokenTable, *, spell_special: bool) -> list[str]:
    detokenizer = new_detokenizer(table, at_start=True)
    pieces = []
    for token_id in token_ids:
        special = spell_special and token_id in table.special_ids
        pieces.append(table.label(token_id) if special else detokenizer.push(token_id))
    pieces[-1] += detokenizer.finish()
    return pieces


def _alternatives(entry: TokenLogprobs, table: TokenTable) -> dict[str, float]:
    """The chosen token is always among them, so there may be one more than asked for, as at OpenAI."""
    alternatives = {table.label(token_id): logprob for token_id, logprob in entry.top}
    alternatives.setdefault(table.label(entry.token_id), entry.logprob)
    return alternatives
