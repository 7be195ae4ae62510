"""Prompts of an exact token length, each unlike any other, so that no server profits from its prefix cache."""

from __future__ import annotations

import random

from tokenizers import Tokenizer

_TEXT = (
    "time year people way day man thing woman life child world school state family student group country problem "
    "hand part place case week company system program question work government number night point home water room "
    "mother area money story fact month lot right study book eye job word business issue side kind head house "
    "service friend father power hour game line end member law car city community name"
)
_WORDS = tuple(_TEXT.split())


class PromptSource:
    """Texts of exactly `n` tokens under one tokenizer. The same seed gives the same texts."""

    def __init__(self, tokenizer: Tokenizer, seed: int) -> None:
        self._tokenizer = tokenizer
        self._random = random.Random(seed)

    def text(self, num_tokens: int) -> str:
        """A fresh text of exactly `num_tokens` tokens."""
        for _ in range(64):
            words = [str(self._random.randrange(10**6))] + [self._random.choice(_WORDS) for _ in range(num_tokens + 8)]
            ids = self._tokenizer.encode(" ".join(words), add_special_tokens=False).ids[:num_tokens]
            text: str = self._tokenizer.decode(ids)
            if len(self._tokenizer.encode(text, add_special_tokens=False).ids) == num_tokens:
                return text
        raise ValueError(f"no text of {num_tokens} tokens found")
