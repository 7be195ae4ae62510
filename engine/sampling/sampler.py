"""The sampler: one output token per row of logits, by the rules of each sequence.

A row goes through: logit bias, penalties and bans (`penalties`), then greedy choice, or temperature, top-k, top-p,
min-p and a draw from the sequence's own random stream (`filters`, `stream`). A row depends on its sequence alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import torch

from contracts.batch import PromptLogprobs, SampledToken, SequenceStart
from contracts.errors import EngineFailure
from contracts.request import SamplingParams
from engine.sampling.filters import choose
from engine.sampling.logprobs import token_logprobs
from engine.sampling.penalties import TokenCounts, add_bias, ban, has_penalties, penalize
from engine.sampling.stream import stream_key, uniform

GREEDY_BELOW = 1e-5
"""Temperatures below this are greedy: dividing by them would overflow float32 (vLLM draws the same line)."""

NOT_FINITE = "the model produced logits that are not finite"
NOTHING_LEFT = "logit_bias and min_tokens leave no token to choose"


class SampleResult(msgspec.Struct, frozen=True):
    """Sampled tokens in row order, without the rows that failed; `failed` names those sequences with the reason."""

    tokens: tuple[SampledToken, ...]
    failed: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _State:
    """One sequence: what was asked (`start`), and what came of it so far."""

    start: SequenceStart
    stream_key: int
    banned: tuple[int, ...]
    counts: TokenCounts | None
    outputs: list[int] = field(default_factory=list)

    @property
    def params(self) -> SamplingParams:
        return self.start.sampling

    @property
    def greedy(self) -> bool:
        return self.params.temperature < GREEDY_BELOW

    @property
    def bans(self) -> bool:
        return bool(self.banned) and len(self.outputs) < self.params.min_tokens

    @property
    def adjusts(self) -> bool:
        return self.counts is not None or bool(self.params.logit_bias) or self.bans

    def append(self, token_id: int) -> None:
        self.outputs.append(token_id)
        if self.counts is not None:
            self.counts.add_output(token_id)

    def covers(self, start: SequenceStart) -> bool:
        """Whether `start` says nothing that is not known already."""
        return (
            self.start.prompt_token_ids == start.prompt_token_ids
            and self.params == start.sampling
            and tuple(self.outputs[: len(start.output_token_ids)]) == start.output_token_ids
        )


class Sampler:
    """Samples for every sequence of one engine. Not thread-safe: it belongs to the engine's thread."""

    def __init__(self, vocab_size: int, eos_token_ids: tuple[int, ...], default_seed: int) -> None:
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._default_seed = default_seed
        self._states: dict[str, _State] = {}

    def __len__(self) -> int:
        """Sequences it remembers."""
        return len(self._states)

    def start(self, start: SequenceStart) -> None:
        """Remember a sequence. Idempotent: a start that says nothing new changes nothing, any other one replaces.

        A token id outside the vocabulary in `logit_bias` fails the sequence when it is first sampled.
        """
        known = self._states.get(start.sequence_id)
        if known is not None and known.covers(start):
            return
        params = start.sampling
        stops = dict.fromkeys(self._eos_token_ids + params.stop_token_ids) if params.min_tokens else ()
        self._states[start.sequence_id] = _State(
            start=start,
            stream_key=stream_key(params.seed, self._default_seed, start.sequence_id),
            banned=tuple(token_id for token_id in stops if 0 <= token_id < self._vocab_size),
            counts=TokenCounts(start.prompt_token_ids, start.output_token_ids) if has_penalties(params) else None,
            outputs=list(start.output_token_ids),
        )

    def end(self, sequence_id: str) -> None:
        """Forget a sequence. Idempotent."""
        self._states.pop(sequence_id, None)

    def sample(self, sequence_ids: Sequence[str], logits: torch.Tensor) -> SampleResult:
        """The next output token of each sequence, from its row of `logits` float32 [R, vocab].

        Rows that cannot be sampled (NaN, infinity, nothing left to choose) end up in `failed` and leave no trace.
        Raises `EngineFailure` when a sequence was never started.
        """
        states = [self._state(sequence_id) for sequence_id in sequence_ids]
        if not states:
            return SampleResult(())
        # One pass gives the greedy choice (the first, lowest id where values tie) and shows NaN and infinity.
        best = logits.max(dim=-1)
        finite = best.values.isfinite().tolist()
        failed: list[tuple[str, str]] = []
        chosen: list[tuple[int, _State, int]] = []
        for row, (state, is_finite, best_id) in enumerate(zip(states, finite, best.indices.tolist(), strict=True)):
            if not is_finite:
                failed.append((state.start.sequence_id, NOT_FINITE))
                continue
            try:
                token_id = self._choose(state, logits, row, best_id)
            except EngineFailure as error:
                failed.append((state.start.sequence_id, error.message))
                continue
            state.append(token_id)
            chosen.append((row, state, token_id))
        return SampleResult(self._report(chosen, logits), tuple(failed))

    def prompt_logprobs(
        self, sequence_id: str, first: int, logits: torch.Tensor, targets: Sequence[int], top: int
    ) -> PromptLogprobs:
        """Log probabilities of prompt tokens `first ...`: `targets[r]` under row `r` of `logits` float32 [R, vocab].

        Raises `EngineFailure` when a row is not finite.
        """
        if not bool(logits.amax(dim=-1).isfinite().all()):
            raise EngineFailure(f"{NOT_FINITE} (sequence {sequence_id}, prompt tokens from {first})")
        return PromptLogprobs(sequence_id, first, token_logprobs(logits, targets, [top] * len(targets)))

    def _state(self, sequence_id: str) -> _State:
        state = self._states.get(sequence_id)
        if state is None:
            raise EngineFailure(f"sequence {sequence_id} was never started")
        return state

    def _choose(self, state: _State, logits: torch.Tensor, index: int, best_id: int) -> int:
        if state.greedy and not state.adjusts:
            return best_id
        row = logits[index]
        if state.adjusts:
            row = self._adjusted(state, row)
            if not bool(row.amax().isfinite()):
                raise EngineFailure(NOTHING_LEFT)
        if state.greedy:
            return int(row.argmax())
        return choose(row, state.params, uniform(state.stream_key, len(state.outputs)))

    def _adjusted(self, state: _State, row: torch.Tensor) -> torch.Tensor:
        row = row.clone()
        params = state.params
        if params.logit_bias:
            outside = [token_id for token_id in params.logit_bias if not 0 <= token_id < self._vocab_size]
            if outside:
                raise EngineFailure(f"logit_bias names token {outside[0]}, outside the vocabulary")
            add_bias(row, params.logit_bias)
        if state.counts is not None:
            penalize(row, params, state.counts)
        if state.bans:
            ban(row, state.banned)
        return row

    def _report(self, chosen: list[tuple[int, _State, int]], logits: torch.Tensor) -> tuple[SampledToken, ...]:
        """Attach log probabilities where a sequence asked for them, all rows at once."""
        wanted = [(row, token_id, top) for row, state, token_id in chosen if (top := state.params.logprobs) is not None]
        reported = {}
        if wanted:
            rows, targets, tops = zip(*wanted, strict=True)
            reported = dict(zip(rows, token_logprobs(logits[list(rows)], targets, tops), strict=True))
        return tuple(
            SampledToken(state.start.sequence_id, token_id, reported.get(row)) for row, state, token_id in chosen
        )
