"""Text to token ids. Long texts are encoded on a thread of their own, so that running streams keep their pace."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tokenizers import Tokenizer

from contracts.errors import InvalidRequest, ModelError
from router.client_text import clip
from router.token_table import TokenTable


def load_tokenizer(path: Path) -> Tokenizer:
    """Raises `ModelError` naming the file."""
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the binding raises bare Exception
        raise ModelError(f"{path}: not a usable tokenizer: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


class PromptEncoder:
    """Encodes prompts and refuses those over the context. Owns one thread; `close` ends it.

    `vocab_size` is the model's, which may differ from the tokenizer's by padding. `max_context` is asked each time: it
    depends on which replicas are there.
    """

    def __init__(
        self, table: TokenTable, *, vocab_size: int, max_context: Callable[[], int], inline_chars: int
    ) -> None:
        self._table = table
        self._tokenizer = table.tokenizer
        self._vocab_size = vocab_size
        self.max_context = max_context
        self._inline_chars = inline_chars
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenize")

    async def encode(self, text: str, *, add_special_tokens: bool, param: str) -> tuple[int, ...]:
        """Token ids of `text`; never empty. Raises `InvalidRequest` naming `param`.

        A text that could not fit even if it were made of the longest tokens only is refused without encoding it.
        """
        fewest = -(-len(text) // self._table.longest_token_chars)
        if fewest >= self.max_context():
            self._refuse(f"at least {fewest}", param)
        if len(text) <= self._inline_chars:
            ids = self._encode(text, add_special_tokens)
        else:
            loop = asyncio.get_running_loop()
            ids = await loop.run_in_executor(self._thread, self._encode, text, add_special_tokens)
        return self.check(ids, param)

    def check(self, ids: tuple[int, ...], param: str) -> tuple[int, ...]:
        """`ids` again if a model can continue them: known ids, at least one, and room for one more token."""
        if not ids:
            raise InvalidRequest(f"{param}: the prompt is empty", param=param)
        if len(ids) >= self.max_context():
            self._refuse(str(len(ids)), param)
        if max(ids) >= self._vocab_size or min(ids) < 0:
            wrong = next(token_id for token_id in ids if not 0 <= token_id < self._vocab_size)
            raise InvalidRequest(f"{param}: token id {clip(wrong)} is not in 0..{self._vocab_size - 1}", param=param)
        return ids

    def close(self) -> None:
        """Ends the thread; what is queued is dropped."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _encode(self, text: str, add_special_tokens: bool) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids)

    def _refuse(self, length: str, param: str) -> None:
        limit = self.max_context()
        message = (
            f"{param}: the prompt has {length} tokens; the context of this model is {limit} tokens, output included"
        )
        raise InvalidRequest(message, param=param)
