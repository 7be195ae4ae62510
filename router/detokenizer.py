"""Tokens to text, one token at a time, never half a character.

The text of a sequence is what its tokens add to the text before them: joined pieces equal the whole text by
construction, streamed or not. Bytes that do not (yet) form a character wait; only those left over at the end become
U+FFFD. Special tokens are no text.
"""

from __future__ import annotations

import codecs
from typing import Protocol

from router.token_table import TokenTable

_REPLACEMENT = "\ufffd"
_Utf8Decoder = codecs.getincrementaldecoder("utf-8")


class Detokenizer(Protocol):
    """One sequence's text."""

    def push(self, token_id: int) -> str:
        """The text that this token completes, possibly empty."""
        ...

    def finish(self) -> str:
        """What is left when no token follows: at most one replacement character per unfinished character."""
        ...


class TableDetokenizer:
    """For byte-level BPE and SentencePiece-with-byte-fallback vocabularies: tokens are bytes, bytes are UTF-8.

    Between characters a token that is whole characters is looked up; only others go through the decoder."""

    __slots__ = ("_between", "_decoder", "_pieces", "_strip_first", "_texts")

    def __init__(self, table: TokenTable, *, at_start: bool) -> None:
        self._pieces = table.pieces
        self._texts = table.texts
        self._decoder = _Utf8Decoder("replace")
        self._strip_first = at_start and table.strips_first_space
        self._between = not self._strip_first

    def push(self, token_id: int) -> str:
        if self._between and 0 <= token_id < len(self._texts):
            whole = self._texts[token_id]
            if whole is not None:
                return whole
        piece = self._pieces[token_id] if 0 <= token_id < len(self._pieces) else None
        if piece is None:
            return ""
        text = self._decoder.decode(piece)
        if self._strip_first and text:
            self._strip_first = False
            text = text.removeprefix(" ")
        self._between = not self._strip_first and not self._decoder.getstate()[0]
        return text

    def finish(self) -> str:
        return self._decoder.decode(b"", final=True)


class WindowDetokenizer:
    """For any other decoder: decodes a short window with and without the new tokens and takes the difference."""

    __slots__ = ("_ids", "_settled", "_tokenizer", "_window")

    def __init__(self, table: TokenTable) -> None:
        self._tokenizer = table.tokenizer
        self._ids: list[int] = []
        self._window = 0
        self._settled = 0

    def push(self, token_id: int) -> str:
        self._ids.append(token_id)
        added = self._added()
        if not added or added.endswith(_REPLACEMENT):
            return ""
        self._window, self._settled = self._settled, len(self._ids)
        return added

    def finish(self) -> str:
        added = self._added()
        self._settled = len(self._ids)
        return added

    def _added(self) -> str:
        before = self._tokenizer.decode(self._ids[self._window : self._settled], skip_special_tokens=True)
        after: str = self._tokenizer.decode(self._ids[self._window :], skip_special_tokens=True)
        return after[len(before) :]


def new_detokenizer(table: TokenTable, *, at_start: bool = False) -> Detokenizer:
    """A detokenizer for one sequence. `at_start`: the tokens begin a text instead of continuing a prompt, which is
    where SentencePiece decoders drop the one space they put before every text."""
    return TableDetokenizer(table, at_start=at_start) if table.is_tabled else WindowDetokenizer(table)
