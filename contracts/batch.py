"""The schedule of one step as a value, complete and inert: the runner never looks back into the scheduler."""

from __future__ import annotations

import msgspec

from contracts.phase import Phase
from contracts.request import SamplingParams


class SequenceStart(msgspec.Struct, frozen=True):
    """What the engine must know once about a sequence: sent with the first batch that contains it.

    `output_token_ids` is non-empty when the sequence continues elsewhere than it began.
    """

    sequence_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    output_token_ids: tuple[int, ...] = ()


class Chunk(msgspec.Struct, frozen=True):
    """Consecutive tokens of one sequence, computed in one step: a prefill chunk, or one token of a decode.

    `token_ids[i]` stands at position `start + i`. `block_table[j]` is the KV block of positions
    `j * block_size` to `(j + 1) * block_size - 1` and covers the last position of the chunk. Positions below `start`
    are already in the cache. `samples` asks for one output token from the last row. With `prompt_logprobs` the rows
    of the chunk that predict a prompt token report it.
    """

    sequence_id: str
    token_ids: tuple[int, ...]
    start: int
    block_table: tuple[int, ...]
    samples: bool
    prompt_logprobs: bool = False


class Batch(msgspec.Struct, frozen=True, kw_only=True):
    """One step: any mix of prefill chunks and decode tokens.

    `ended` names sequences the engine may forget, `started` those it has not seen (both idempotent). `ended` is applied
    first: an id may be used again.
    """

    step_index: int
    phase: Phase
    chunks: tuple[Chunk, ...]
    started: tuple[SequenceStart, ...] = ()
    ended: tuple[str, ...] = ()

    @property
    def num_tokens(self) -> int:
        """Rows of the flattened batch."""
        return sum(len(chunk.token_ids) for chunk in self.chunks)


class TokenLogprobs(msgspec.Struct, frozen=True):
    """Natural-log probability of one token and of the best alternatives, best first, before temperature."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


class SampledToken(msgspec.Struct, frozen=True):
    """The output token of one sequence in one step."""

    sequence_id: str
    token_id: int
    logprobs: TokenLogprobs | None = None


class PromptLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of prompt tokens `first` to `first + len(entries) - 1`. Token 0 has none."""

    sequence_id: str
    first: int
    entries: tuple[TokenLogprobs, ...]


class StepResult(msgspec.Struct, frozen=True, kw_only=True):
    """What a step produced. `failed` names sequences whose rows raised, with the reason."""

    step_index: int
    sampled: tuple[SampledToken, ...] = ()
    prompt_logprobs: tuple[PromptLogprobs, ...] = ()
    failed: tuple[tuple[str, str], ...] = ()
