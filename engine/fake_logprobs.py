"""Log probabilities of the fake engine: made up, valid, and the same however a prompt is chunked."""

from __future__ import annotations

from contracts.batch import Chunk, PromptLogprobs, TokenLogprobs
from engine.fake_history import FakeHistory


def made_up_logprobs(token_id: int, count: int, word: int, vocab_size: int) -> TokenLogprobs:
    """Numbers from `word` that add up to a probability below 1; the token itself is the best one."""
    others = ((token_id + 1 + index) % vocab_size for index in range(count))
    ranked = (token_id, *others)[:count]
    best = -0.1 - (word % 1000) / 1000.0 * 0.3  # 0.67 to 0.90
    steps = tuple((token, best if rank == 0 else -2.0 - rank) for rank, token in enumerate(ranked))
    return TokenLogprobs(token_id, best, steps)


def made_up_prompt_logprobs(chunk: Chunk, history: FakeHistory, vocab_size: int) -> PromptLogprobs:
    """What the rows of `chunk` say about the prompt tokens after them."""
    prompt = history.start.prompt_token_ids
    count = history.start.sampling.prompt_logprobs or 0
    first = chunk.start + 1
    positions = range(first, min(chunk.start + len(chunk.token_ids) + 1, len(prompt)))
    entries = (made_up_logprobs(prompt[at], count, int(history.words[at]), vocab_size) for at in positions)
    return PromptLogprobs(chunk.sequence_id, first, tuple(entries))
