"""A fake engine: deterministic tokens from a hash, no model, and a checker of whoever schedules it. No torch.

It keeps a KV cache of real bytes (`fake_kv`), which stand for the keys and values of a token in its context. A chunk
writes its slots, layer by layer, and a sampled token is computed from what the slots of the *block table* hold, as
attention would. So a wrong table, a block reused too early, a wrong position, a wrongly fed token, or bytes that were
lost or mixed up on the way from another engine change the output, and `faults` says what was wrong. The right output is
a pure function of the sequence's tokens: `expected_output`.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from contracts.batch import Batch, Chunk, SampledToken, SequenceStart, StepResult
from contracts.engine import OnLayerDone
from contracts.errors import EngineFailure
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.fake_history import FakeHistory, Words, fault_of, mix_words, next_word, token_words
from engine.fake_kv import FakeKV, Indices
from engine.fake_logprobs import made_up_logprobs, made_up_prompt_logprobs
from engine.sampling.stream import mix64

_Rows = tuple[Indices, Indices, Words]

MAX_FAULTS = 100
MAX_TRIES = 1000

FIRST_READ_BYTES = 64 << 20  # a sequence's first sample on an engine reads its context whole, up to this many bytes
READ_BYTES = 4 << 10  # every later sample reads so much of it, in turn


def fake_spec(
    *,
    vocab_size: int = 49152,
    max_context: int = 8192,
    eos_token_ids: tuple[int, ...] = (2,),
    name: str = "fake",
    num_layers: int = 2,
    num_kv_heads: int = 2,
    head_dim: int = 16,
    digest: str = "fake",
) -> ModelSpec:
    """A model that is only a shape. The default vocabulary fits the tokenizer of SmolLM2.

    KV takes `16 * num_layers * num_kv_heads * head_dim / 2` bytes a token in float32: 512 by default, and 46,080 with
    the 30 layers, 3 heads and 64 dimensions of SmolLM2-135M.
    """
    return ModelSpec(
        name=name,
        family="fake",
        vocab_size=vocab_size,
        hidden_size=64,
        intermediate_size=128,
        num_layers=num_layers,
        num_heads=2 * num_kv_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        rms_norm_eps=1e-5,
        rope_theta=10_000.0,
        max_context=max_context,
        tie_word_embeddings=True,
        bos_token_id=1,
        eos_token_ids=eos_token_ids,
        digest=digest,
    )


def fake_layout(spec: ModelSpec, *, block_size: int = 16, dtype: str = "float32") -> KVLayout:
    """The KV layout of a fake model."""
    return KVLayout(
        num_layers=spec.num_layers,
        num_kv_heads=spec.num_kv_heads,
        head_dim=spec.head_dim,
        block_size=block_size,
        dtype=dtype,
    )


class FakeEngine:
    """Implements `contracts.engine.Engine`.

    `step_seconds(batch)` is how long a step takes and `sleep` how to wait for it: at once, or shared out over layers in
    a step that announces them, so that what is done with a layer's KV hides behind the next ones. About one token in
    `eos_every` ends its sequence (0: none). Other tokens come from `token_ids` (default: the whole vocabulary) and are
    never an eos. Of the sampling parameters `min_tokens` (bans eos and `stop_token_ids`) and the logprobs count; as
    with a real engine, `ignore_eos` bans nothing. Log probabilities are made up, but valid and independent of the
    chunking. `prefault` as in `engine.config.EngineConfig`. A sequence's first sample checks `first_read_bytes`.
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
        prefault: bool = False,
        first_read_bytes: int = FIRST_READ_BYTES,
    ) -> None:
        self._spec = spec
        self._layout = layout
        self._step_seconds = step_seconds
        self._sleep = sleep
        self._first_read_bytes = first_read_bytes
        self._eos_every = eos_every if spec.eos_token_ids else 0
        self._token_ids = token_ids or range(spec.vocab_size)
        self._num_blocks = num_blocks
        self._kv = FakeKV(layout, num_blocks, touch=prefault)
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
        return self._num_blocks

    @property
    def kv_memory(self) -> memoryview:
        """The KV pool, see `contracts.engine.Engine`."""
        return self._kv.memory

    @property
    def device(self) -> str:
        """No device."""
        return "fake"

    @property
    def numerics(self) -> str:
        """One way to compute."""
        return "fake"

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

    def step(self, batch: Batch, on_layer_done: OnLayerDone | None = None) -> StepResult:
        """Compute one batch. Raises `EngineFailure` when told to, when closed, and when a batch cannot be computed."""
        if self._closed:
            raise EngineFailure("the engine is closed")
        for sequence_id in batch.ended:
            self._histories.pop(sequence_id, None)
        for start in batch.started:
            self._start(start)
        delay_s, self._stall_s = self._stall_s + self._step_seconds(batch), 0.0
        if on_layer_done is None or not batch.chunks:
            self._sleep(delay_s)
        if self._fails is not None and self._fails(batch):
            raise EngineFailure(f"step {batch.step_index} failed on demand")
        if batch.chunks:
            self._write(batch.chunks, delay_s, on_layer_done)
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
        sampled = []
        prompt_logprobs = []
        for chunk in batch.chunks:
            if chunk.sequence_id in failing:
                continue
            if chunk.prompt_logprobs:
                history = self._histories[chunk.sequence_id]
                prompt_logprobs.append(made_up_prompt_logprobs(chunk, history, self._spec.vocab_size))
            if chunk.samples:
                sampled.append(self._sample(chunk))
        return StepResult(
            step_index=batch.step_index,
            sampled=tuple(sampled),
            prompt_logprobs=tuple(prompt_logprobs),
            failed=tuple((sequence_id, "failed on demand") for sequence_id in sorted(failing)),
        )

    def _write(self, chunks: tuple[Chunk, ...], delay_s: float, on_layer_done: OnLayerDone | None) -> None:
        """All rows write, layer by layer, before any row reads, as the layers of a model do."""
        for layer in range(self._layout.num_layers):
            if on_layer_done is not None:
                self._sleep(delay_s / self._layout.num_layers)
            if layer == 0:  # in turn: a chunk may go on from a word that another chunk of the same step writes
                rows = [self._write_first(chunk) for chunk in chunks]
                blocks, offsets, words = (np.concatenate(parts) for parts in zip(*rows, strict=True))
            else:
                self._kv.write(layer, blocks, offsets, words)
            if on_layer_done is not None:
                on_layer_done(layer)

    def _write_first(self, chunk: Chunk) -> _Rows:
        """The chunk's blocks, offsets and words, which the first layer now holds."""
        self._check(chunk, chunk.start + len(chunk.token_ids))
        blocks, offsets = self._kv.slots(chunk)
        before = self._kv.word_before(chunk)
        if len(chunk.token_ids) == 1:  # a decode, by far the most frequent: plain integers are the faster way
            words = np.array([next_word(before, chunk.token_ids[0], chunk.start)], dtype=np.uint64)
        else:
            words = np.cumsum(token_words(chunk.token_ids, chunk.start), dtype=np.uint64) + np.uint64(before)
        self._kv.write(0, blocks, offsets, words)
        return blocks, offsets, words

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
        context = self._kv.read(chunk.block_table, end, READ_BYTES if history.read else self._first_read_bytes)
        history.read = True
        right = end == len(history.tokens) and np.array_equal(context, history.words[:end])
        if not right and len(self.faults) < MAX_FAULTS:
            self.faults.append(fault_of(chunk, history, context, self._layout.block_size))
        token_id = self._next_token(history, context)
        history.append(token_id)
        count = history.start.sampling.logprobs
        if count is None:
            return SampledToken(chunk.sequence_id, token_id)
        word = int(history.words[len(history.tokens) - 1])
        logprobs = made_up_logprobs(token_id, count, word, self._spec.vocab_size)
        return SampledToken(chunk.sequence_id, token_id, logprobs)

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
