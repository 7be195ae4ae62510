"""`contracts.engine.Engine` over a layer executor: flatten the batch, run the layers, sample where asked."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from contracts.batch import Batch, Chunk, PromptLogprobs, SequenceStart, StepResult, TokenLogprobs
from contracts.engine import OnLayerDone
from contracts.errors import EngineFailure
from contracts.kv import KVLayout
from contracts.model import ModelSpec
from engine.executor import LayerExecutor
from engine.kv_cache import KVCache
from engine.sampling.sampler import Sampler
from engine.step_inputs import build_step_inputs

_PROMPT_ROWS = 128  # logits rows held at once for prompt log probabilities: 8k rows of a large vocabulary are gigabytes


class TorchEngine:
    """One model on one device, with whatever executor computes its layers."""

    def __init__(
        self,
        spec: ModelSpec,
        executor: LayerExecutor,
        kv_cache: KVCache,
        sampler: Sampler,
        *,
        device: torch.device,
        numerics: str,
    ) -> None:
        self._spec = spec
        self._kv_layout = kv_cache.layout
        self._num_blocks = kv_cache.num_blocks
        self._kv_memory = kv_cache.memory
        self._executor: LayerExecutor | None = executor
        self._sampler = sampler
        self._device = device
        self._numerics = numerics
        self._starts: dict[str, SequenceStart] = {}

    @property
    def spec(self) -> ModelSpec:
        """The model served; `max_context` is what this engine can hold."""
        return self._spec

    @property
    def kv_layout(self) -> KVLayout:
        """How KV lies in memory."""
        return self._kv_layout

    @property
    def num_blocks(self) -> int:
        """KV blocks that exist."""
        return self._num_blocks

    @property
    def kv_memory(self) -> memoryview | None:
        """The KV pool, see `contracts.engine.Engine`. None on CUDA, and after `close`."""
        return self._kv_memory

    @property
    def device(self) -> str:
        """Where it runs, in torch's words."""
        return str(self._device)

    @property
    def numerics(self) -> str:
        """Weights' quantization and executor, which both change values."""
        return self._numerics

    @torch.inference_mode()
    def step(self, batch: Batch, on_layer_done: OnLayerDone | None = None) -> StepResult:
        """Compute one batch. A sequence whose logits are not finite fails alone; anything else is `EngineFailure`.

        With `on_layer_done` each layer is announced before its attention, so with most of its computing still to come.
        """
        if self._executor is None:
            raise EngineFailure("the engine is closed")
        self._end(batch.ended)
        self._start(batch.started)
        if not batch.chunks:
            return StepResult(step_index=batch.step_index)
        inputs = build_step_inputs(batch, self._kv_layout, self._num_blocks, self._spec, self._device)
        try:
            hidden = self._executor.embed(inputs)
            hidden = self._executor.run_layers(hidden, inputs, 0, self._spec.num_layers, on_layer_done)
            return self._outputs(self._executor, batch, hidden)
        except RuntimeError as error:  # what torch raises, out-of-memory included
            raise EngineFailure(f"step {batch.step_index}: {error}") from error

    def close(self) -> None:
        """Forget all sequences and let go of weights and KV cache. Idempotent."""
        self._end(tuple(self._starts))
        self._executor = None
        self._kv_memory = None

    def _start(self, started: Iterable[SequenceStart]) -> None:
        for start in started:
            self._starts[start.sequence_id] = start
            self._sampler.start(start)

    def _end(self, ended: Iterable[str]) -> None:
        for sequence_id in ended:
            self._starts.pop(sequence_id, None)
            self._sampler.end(sequence_id)

    def _outputs(self, executor: LayerExecutor, batch: Batch, hidden: torch.Tensor) -> StepResult:
        """Logits of the rows that somebody asked for, and of no other row."""
        sequence_ids, last_rows = [], []
        prompt_logprobs: list[PromptLogprobs] = []
        failed: dict[str, str] = {}
        first_row = 0
        for chunk in batch.chunks:
            rows = hidden[first_row : first_row + len(chunk.token_ids)]
            first_row += len(chunk.token_ids)
            if chunk.prompt_logprobs:
                try:
                    prompt_logprobs += self._prompt_logprobs(executor, chunk, rows)
                except EngineFailure as error:
                    failed[chunk.sequence_id] = error.message
            if chunk.samples and chunk.sequence_id not in failed:
                sequence_ids.append(chunk.sequence_id)
                last_rows.append(first_row - 1)
        sampled = self._sampler.sample(sequence_ids, executor.logits(hidden[last_rows])) if last_rows else None
        return StepResult(
            step_index=batch.step_index,
            sampled=sampled.tokens if sampled else (),
            prompt_logprobs=tuple(prompt_logprobs),
            failed=(*failed.items(), *(sampled.failed if sampled else ())),
        )

    def _prompt_logprobs(self, executor: LayerExecutor, chunk: Chunk, rows: torch.Tensor) -> list[PromptLogprobs]:
        """The row at position p predicts prompt token p + 1; the last prompt row predicts an output token instead."""
        start = self._starts.get(chunk.sequence_id)
        if start is None:
            raise EngineFailure(f"sequence {chunk.sequence_id} was never started")
        first = chunk.start + 1
        targets = start.prompt_token_ids[first : first + len(chunk.token_ids)]
        entries: list[TokenLogprobs] = []
        for begin in range(0, len(targets), _PROMPT_ROWS):
            part = targets[begin : begin + _PROMPT_ROWS]
            logits = executor.logits(rows[begin : begin + len(part)])
            top = start.sampling.prompt_logprobs or 0
            entries += self._sampler.prompt_logprobs(chunk.sequence_id, first + begin, logits, part, top).entries
        return [PromptLogprobs(chunk.sequence_id, first, tuple(entries))] if entries else []
