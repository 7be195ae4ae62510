"""What each token of a vocabulary is in bytes, built once when a tokenizer is loaded."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>\Z")
_SPACE_MARK = "\u2581"


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable stand-ins for the 256 bytes, reversed: character to byte."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {chr(byte): byte for byte in printable}
    others = (byte for byte in range(256) if byte not in printable)
    alphabet.update({chr(256 + i): byte for i, byte in enumerate(others)})
    return alphabet


_ALPHABET = _byte_alphabet()
_LATIN_1 = {ord(char): byte for char, byte in _ALPHABET.items()}


def _byte_level(token: str) -> bytes:
    """A token outside the alphabet is an added one, which is spelled as it is."""
    if not _ALPHABET.keys() >= set(token):
        return token.encode()
    return token.translate(_LATIN_1).encode("latin-1")


def _sentencepiece(token: str) -> bytes:
    match = _BYTE_TOKEN.match(token)
    return bytes([int(match[1], 16)]) if match else token.replace(_SPACE_MARK, " ").encode()


def _whole_text(piece: bytes | None) -> str | None:
    try:
        return "" if piece is None else piece.decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class _DecoderKind:
    """How the tokenizer's own decoder turns tokens into bytes; `None` pieces mean that it cannot be tabled."""

    is_byte_level: bool
    is_sentencepiece: bool
    strips_first_space: bool


def _decoder_kind(tokenizer: Tokenizer) -> _DecoderKind:
    decoder = tokenizer.decoder
    state: Any = json.loads(decoder.__getstate__()) if decoder is not None else {}
    steps = state.get("decoders", [state]) if isinstance(state, dict) else []
    names = [step.get("type") for step in steps]
    strips = any(step.get("type") == "Strip" and step.get("content") == " " and step.get("start") for step in steps)
    spaces = {"type": "Replace", "pattern": {"String": _SPACE_MARK}, "content": " "} in steps
    return _DecoderKind(
        is_byte_level=names == ["ByteLevel"],
        is_sentencepiece=spaces
        and names in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]),
        strips_first_space=strips,
    )


class TokenTable:
    """Bytes and label of every token id.

    `pieces[id]` is None for special tokens (they are no text) and for ids without a token. `texts[id]` is the text of
    a token that is whole characters (empty where there is no text), else None. No token stands for more characters
    than `longest_token_chars`. `is_tabled` is false for the rare tokenizers whose decoder looks at more than one token;
    those are decoded through the tokenizer itself.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        kind = _decoder_kind(tokenizer)
        self.tokenizer = tokenizer
        self.is_tabled = kind.is_byte_level or kind.is_sentencepiece
        self.strips_first_space = kind.strips_first_space
        vocab = tokenizer.get_vocab(with_added_tokens=True)
        self.size = max(vocab.values(), default=-1) + 1
        self._strings: list[str | None] = [None] * self.size
        for token, token_id in vocab.items():
            self._strings[token_id] = token
        self.longest_token_chars = max(map(len, vocab), default=1)
        added = tokenizer.get_added_tokens_decoder()
        self.special_ids = frozenset(token_id for token_id, token in added.items() if token.special)
        to_bytes = _byte_level if kind.is_byte_level else _sentencepiece
        self.pieces: list[bytes | None] = [
            None if token is None or token_id in self.special_ids else to_bytes(token)
            for token_id, token in enumerate(self._strings)
        ]
        self.texts = [_whole_text(piece) for piece in self.pieces]

    def raw(self, token_id: int) -> bytes:
        """The bytes a token stands for; a special token's own spelling."""
        if not 0 <= token_id < self.size:
            return b""
        piece = self.pieces[token_id]
        if piece is None:
            return (self._strings[token_id] or "").encode()
        return piece if self.is_tabled else self.tokenizer.decode([token_id]).encode()

    def label(self, token_id: int) -> str:
        """The token as text for log probability tables; part of a character reads `bytes:\\xe2\\x82`, as at OpenAI."""
        raw = self.raw(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)
