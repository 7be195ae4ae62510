"""What the fake engine knows about one sequence, and the 64-bit words that stand for keys and values. No torch.

The word of position `p` is the sum (mod 2**64) of a hash of token and position over positions 0 to p: it depends on the
whole prefix, as keys and values above the first layer do, and a chunk's words follow from the word before it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from contracts.batch import Chunk, SequenceStart
from engine.sampling.stream import mix64

Words = npt.NDArray[np.uint64]


@dataclass(slots=True)
class FakeHistory:
    """The tokens of one sequence, prompt and output, and their `words`, uint64 (with room to grow at the end).

    `read` says whether all of its KV was read once on this engine.
    """

    start: SequenceStart
    tokens: list[int]
    words: Words
    read: bool = False

    @classmethod
    def of(cls, start: SequenceStart) -> FakeHistory:
        """The history of a sequence that begins, or continues, here."""
        tokens = start.prompt_token_ids + start.output_token_ids
        return cls(start, list(tokens), np.cumsum(token_words(tokens, 0), dtype=np.uint64))

    @property
    def num_outputs(self) -> int:
        """Output tokens so far."""
        return len(self.tokens) - len(self.start.prompt_token_ids)

    def covers(self, start: SequenceStart) -> bool:
        """Whether `start` says nothing that is not known already."""
        tokens = start.prompt_token_ids + start.output_token_ids
        return self.start.sampling == start.sampling and tuple(self.tokens[: len(tokens)]) == tokens

    def append(self, token_id: int) -> None:
        """Add one output token."""
        position = len(self.tokens)
        if position == len(self.words):
            self.words = np.concatenate([self.words, np.zeros(max(64, position), dtype=np.uint64)])
        self.words[position] = next_word(int(self.words[position - 1]) if position else 0, token_id, position)
        self.tokens.append(token_id)


def fault_of(chunk: Chunk, history: FakeHistory, context: Words, block_size: int) -> str:
    """What is wrong with a chunk whose `context`, as the cache holds it, is not that of its sequence."""
    known = min(len(context), len(history.tokens))
    wrong = np.flatnonzero(context[:known] != history.words[:known])
    where = f"sequence {chunk.sequence_id}, chunk at {chunk.start} of {len(chunk.token_ids)}"
    if len(wrong) == 0:
        return f"{where}: samples after {len(context)} tokens, has {len(history.tokens)}"
    position = int(wrong[0])
    fed = chunk.token_ids[position - chunk.start] if position >= chunk.start else None
    block = chunk.block_table[position // block_size]
    right = history.tokens[position]
    cause = f"fed token {fed}, should be {right}" if fed not in (None, right) else "the block holds something else"
    return f"{where}: position {position} (block {block}): {cause}"


def next_word(word: int, token_id: int, position: int) -> int:
    """The word of `token_id` at `position`, after the word of the position before it (0 at the start)."""
    return (word + mix64((position << 32) + token_id + 1)) & 0xFFFF_FFFF_FFFF_FFFF


def token_words(token_ids: tuple[int, ...], start: int) -> Words:
    """What each token adds to the words of its own and all later positions: a hash of both, uint64 [len(token_ids)]."""
    tokens = np.array(token_ids, dtype=np.uint64)
    positions = np.arange(start, start + len(token_ids), dtype=np.uint64)
    return mix_words((positions << np.uint64(32)) + tokens + np.uint64(1))


def mix_words(words: Words) -> Words:
    """`mix64` of many words at once."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
