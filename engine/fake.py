"""A fake engine: deterministic tokens from a hash, no model, and a checker of whoever schedules it. No torch.

It keeps a KV cache in miniature: one 64-bit number per token slot, standing for the keys and values of a token in its
context. A chunk writes its slots and a sampled token is computed from what the slots of the *block table* hold, as
attention would. So a wrong table, a block reused too early, a wrong position or a wrongly fed token changes the output,
and `faults` says what was wrong. The right output is a pure function of the sequence's tokens: `expected_output`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from contracts.batch import (
    Batch,
    Chunk,
    PromptLogprobs,
    SampledToken,
    SequenceStart,
    StepResult,
    TokenLogprobs,
)
from contracts.errors import EngineFailure
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.fake_history import FakeHistory, Words, mix_words, next_word, token_words
from engine.sampling.stream import mix64

MAX_FAULTS = 100
MAX_TRIES = 1000


def fake_spec(
    *, vocab_size: int = 49152, max_context: int = 8192, eos_token_ids: tuple[int, ...] = (2,), name: str = "fake"
) -> ModelSpec:
    """A small model that is only a shape. The defaults fit the tokenizer of SmolLM2."""
    return ModelSpec(
        name=name,
        family="fake",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_layers=2,
        num_heads=4,
        num_kv_heads=2,
        head_dim=16,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_context=max_context,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=eos_token_ids,
        digest="fake",
    )


def fake_layout(spec: ModelSpec, *, block_size: int = 16) -> KVLayout:
    """The KV layout of a fake model."""
    return KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=block_size,
        dtype="float32",
    )


class FakeEngine:
    """Implements `contracts.engine.Engine`.

    `step_seconds(batch)` is how long a step takes and `sleep` how to wait for it. About one token in `eos_every` ends
    its sequence (0: none). Other tokens come from `token_ids` (default: the whole vocabulary) and are never an eos. Of
    the sampling parameters `min_tokens` (bans eos and `stop_token_ids`) and the logprobs are respected; as with a real
    engine, `ignore_eos` bans nothing. Log probabilities are made up, but valid and independent of the chunking.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: KVLayout,
        num_blocks: int,
        *,
        step_seconds: Callable[[Batch], float] = lambda _batch: 0.0,
        sleep: Callable[[float], None] = lambda _seconds: None,
        eos_every: int = 0,
        token_ids: range | None = None,
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._eos_every = eos_every if spec.eos_token_ids else 0
        self._token_ids = token_ids or range(spec.vocab_size)
        self._kv: Words = np.zeros((num_blocks, layout.block_size), dtype=np.uint64)
        self._position_weights = mix_words(np.arange(spec.max_context, dtype=np.uint64)) | np.uint64(1)
        self._histories: dict[str, FakeHistory] = {}
        self._fails: Callable[[Batch], bool] | None = None
        self._fails_row: Callable[[Chunk], bool] | None = None
        self._stall_s = 0.0
        self._closed = False
        self.faults: list[str] = []
        """What was wrong with the batches so far, the first `MAX_FAULTS` of it. Empty under a right scheduler."""

    @property
    def spec(self) -> ModelSpec:
        """The shape given."""
        return self._spec

    @property
    def kv_layout(self) -> KVLayout:
        """The layout given."""
        return self._layout

    @property
    def num_blocks(self) -> int:
        """KV blocks that exist."""
        return len(self._kv)

    @property
    def num_sequences(self) -> int:
        """Sequences it remembers: 0 after a drain."""
        return len(self._histories)

    def fail_on(self, predicate: Callable[[Batch], bool] | None) -> None:
        """From now on, raise `EngineFailure` in every step whose batch the predicate names. None ends it."""
        self._fails = predicate

    def fail_rows_on(self, predicate: Callable[[Chunk], bool] | None) -> None:
        """From now on, report the sequences of the chunks that the predicate names as failed. None ends it."""
        self._fails_row = predicate

    def stall(self, duration_s: float) -> None:
        """Make the next step take `duration_s` longer."""
        self._stall_s = duration_s

    def close(self) -> None:
        """Forget everything; steps raise from now on. Idempotent."""
        self._closed = True
        self._histories.clear()

    def step(self, batch: Batch) -> StepResult:
        """Compute one batch. Raises `EngineFailure` when told to, when closed, and when a batch cannot be computed."""
        if self._closed:
            raise EngineFailure("the engine is closed")
        for sequence_id in batch.ended:
            self._histories.pop(sequence_id, None)
        for start in batch.started:
            self._start(start)
        delay_s, self._stall_s = self._stall_s + self._step_seconds(batch), 0.0
        self._sleep(delay_s)
        if self._fails is not None and self._fails(batch):
            raise EngineFailure(f"step {batch.step_index} failed on demand")
        return self._computed(batch)

    def expected_output(self, start: SequenceStart, count: int) -> tuple[int, ...]:
        """The first `count` output tokens that a right scheduler gets for `start` (going on after an eos)."""
        history = FakeHistory.of(start)
        for _ in range(count - history.num_outputs):
            history.append(self._next_token(history, history.words[: len(history.tokens)]))
        return tuple(history.tokens[len(start.prompt_token_ids) :][:count])

    def _start(self, start: SequenceStart) -> None:
        known = self._histories.get(start.sequence_id)
        if known is None or not known.covers(start):
            self._histories[start.sequence_id] = FakeHistory.of(start)

    def _computed(self, batch: Batch) -> StepResult:
        failing = {
            chunk.sequence_id for chunk in batch.chunks if self._fails_row is not None and self._fails_row(chunk)
        }
        for chunk in batch.chunks:  # all rows write before any row reads, as the layers of a model do
            self._write(chunk)
        sampled = []
        prompt_logprobs = []
        for chunk in batch.chunks:
            if chunk.sequence_id in failing:
                continue
            if chunk.prompt_logprobs:
                prompt_logprobs.append(self._prompt_logprobs(chunk))
            if chunk.samples:
                sampled.append(self._sample(chunk))
        return StepResult(
            step_index=batch.step_index,
            sampled=tuple(sampled),
            prompt_logprobs=tuple(prompt_logprobs),
            failed=tuple((sequence_id, "failed on demand") for sequence_id in sorted(failing)),
        )

    def _write(self, chunk: Chunk) -> None:
        end = chunk.start + len(chunk.token_ids)
        self._check(chunk, end)
        size = self._layout.block_size
        table = chunk.block_table
        last = chunk.start - 1
        before = int(self._kv[table[last // size], last % size]) if chunk.start else 0
        if len(chunk.token_ids) == 1:  # a decode, by far the most frequent: plain integers are the faster way
            word = next_word(before, chunk.token_ids[0], chunk.start)
            self._kv[table[chunk.start // size], chunk.start % size] = word
            return
        first = chunk.start // size
        positions = np.arange(chunk.start, end)
        blocks = np.array(table[first : self._layout.blocks_for(end)])[positions // size - first]
        words = np.cumsum(token_words(chunk.token_ids, chunk.start), dtype=np.uint64)
        self._kv[blocks, positions % size] = words + np.uint64(before)

    def _check(self, chunk: Chunk, end: int) -> None:
        """Refuse what would make a real engine read or write outside its memory."""
        name = f"sequence {chunk.sequence_id}"
        if chunk.sequence_id not in self._histories:
            raise EngineFailure(f"{name} was never started")
        if not chunk.token_ids or chunk.start < 0 or end > self._spec.max_context:
            raise EngineFailure(
                f"{name}: positions {chunk.start} to {end - 1} of a context of {self._spec.max_context}"
            )
        table = chunk.block_table[: self._layout.blocks_for(end)]
        if len(table) * self._layout.block_size < end or min(table) < 0 or max(table) >= self.num_blocks:
            raise EngineFailure(f"{name}: block table {table} does not cover position {end - 1}")

    def _sample(self, chunk: Chunk) -> SampledToken:
        history = self._histories[chunk.sequence_id]
        end = chunk.start + len(chunk.token_ids)
        table = np.array(chunk.block_table[: self._layout.blocks_for(end)])
        context = self._kv[table].reshape(-1)[:end]
        if end != len(history.tokens) or not np.array_equal(context, history.words[:end]):
            self._note_fault(chunk, history, context)
        token_id = self._next_token(history, context)
        history.append(token_id)
        count = history.start.sampling.logprobs
        word = int(history.words[len(history.tokens) - 1])
        return SampledToken(
            chunk.sequence_id, token_id, None if count is None else self._logprobs(token_id, count, word)
        )

    def _next_token(self, history: FakeHistory, context: Words) -> int:
        """The token after `context`, the KV words of positions 0 to len - 1."""
        word = mix64(int((context * self._position_weights[: len(context)]).sum(dtype=np.uint64)))
        sampling = history.start.sampling
        eos = self._spec.eos_token_ids
        may_stop = history.num_outputs >= sampling.min_tokens
        if may_stop and self._eos_every and mix64(word + 1) % self._eos_every == 0:
            return eos[0]
        avoided = eos if may_stop else eos + sampling.stop_token_ids
        for _ in range(MAX_TRIES):
            token_id = self._token_ids[word % len(self._token_ids)]
            if token_id not in avoided:
                return token_id
            word = mix64(word + 2)
        raise EngineFailure("min_tokens bans nearly every token that the fake engine may give")

    def _note_fault(self, chunk: Chunk, history: FakeHistory, context: Words) -> None:
        if len(self.faults) >= MAX_FAULTS:
            return
        known = min(len(context), len(history.tokens))
        wrong = np.flatnonzero(context[:known] != history.words[:known])
        where = f"sequence {chunk.sequence_id}, chunk at {chunk.start} of {len(chunk.token_ids)}"
        if len(wrong) == 0:
            self.faults.append(f"{where}: samples after {len(context)} tokens, has {len(history.tokens)}")
            return
        position = int(wrong[0])
        fed = chunk.token_ids[position - chunk.start] if position >= chunk.start else None
        block = chunk.block_table[position // self._layout.block_size]
        right = history.tokens[position]
        cause = f"fed token {fed}, should be {right}" if fed not in (None, right) else "the block holds something else"
        self.faults.append(f"{where}: position {position} (block {block}): {cause}")

    def _prompt_logprobs(self, chunk: Chunk) -> PromptLogprobs:
        history = self._histories[chunk.sequence_id]
        prompt = history.start.prompt_token_ids
        count = history.start.sampling.prompt_logprobs or 0
        first = chunk.start + 1
        positions = range(first, min(chunk.start + len(chunk.token_ids) + 1, len(prompt)))
        entries = tuple(self._logprobs(prompt[position], count, int(history.words[position])) for position in positions)
        return PromptLogprobs(chunk.sequence_id, first, entries)

    def _logprobs(self, token_id: int, count: int, word: int) -> TokenLogprobs:
        """Made-up numbers that add up to a probability below 1; the token itself is the best one."""
        others = ((token_id + 1 + index) % self._spec.vocab_size for index in range(count))
        ranked = (token_id, *others)[:count]
        best = -0.1 - (word % 1000) / 1000.0 * 0.3  # 0.67 to 0.90
        steps = tuple((token, best if rank == 0 else -2.0 - rank) for rank, token in enumerate(ranked))
        return TokenLogprobs(token_id, best, steps)
