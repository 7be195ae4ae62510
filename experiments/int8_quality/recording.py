"""Running prompts through an engine and keeping the logits from which it sampled."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.engine import Engine
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.build import assemble_engine
from engine.checkpoint.model_files import ModelFiles
from engine.config import EngineConfig
from engine.sampling.sampler import Sampler, SampleResult

Tokens = tuple[int, ...]

GREEDY = SamplingParams(temperature=0.0, prompt_logprobs=0)


class RecordingSampler(Sampler):
    """A sampler that keeps the logits of its last call, float32 [R, vocab]."""

    last_logits: torch.Tensor

    def sample(self, sequence_ids: Sequence[str], logits: torch.Tensor) -> SampleResult:
        """Sample as always, and remember from what."""
        self.last_logits = logits.clone()
        return super().sample(sequence_ids, logits)


class RecordedEngine:
    """An engine that runs one group of prompts at a time."""

    def __init__(self, files: ModelFiles, config: EngineConfig) -> None:
        self._sampler = RecordingSampler(files.spec.vocab_size, files.spec.eos_token_ids, config.seed)
        self._engine: Engine = assemble_engine(files.spec, files.weight_files, config, self._sampler)
        self._steps = 0

    def close(self) -> None:
        """Free the weights."""
        self._engine.close()

    def continue_greedily(
        self, prompts: Sequence[Tokens], count: int, forced: Sequence[Tokens] | None = None
    ) -> tuple[list[Tokens], torch.Tensor]:
        """`count` output tokens of each prompt by prefill and decode steps, and their logits [prompts, count, vocab].

        With `forced`, those tokens are fed whatever the engine would have chosen (teacher forcing).
        """
        starts = tuple(SequenceStart(str(index), prompt, GREEDY) for index, prompt in enumerate(prompts))
        tables = self._block_tables([len(prompt) + count for prompt in prompts])
        chunks = [Chunk(s.sequence_id, s.prompt_token_ids, 0, t, True) for s, t in zip(starts, tables, strict=True)]
        outputs: list[list[int]] = [[] for _ in prompts]
        logits = []
        for index in range(count):
            sampled = self._step(Phase.MIXED, chunks, starts if index == 0 else ())
            logits.append(self._sampler.last_logits)
            for row, output in enumerate(outputs):
                output.append(forced[row][index] if forced else sampled[row])
            chunks = [
                Chunk(str(row), (output[-1],), len(prompts[row]) + index, tables[row], True)
                for row, output in enumerate(outputs)
            ]
        self._end(starts)
        return [tuple(output) for output in outputs], torch.stack(logits, dim=1)

    def negative_log_likelihoods(self, text: Tokens) -> list[float]:
        """Of every token of `text` but the first, given those before it."""
        start = SequenceStart("text", text, GREEDY)
        chunk = Chunk("text", text, 0, self._block_tables([len(text)])[0], False, prompt_logprobs=True)
        result = self._engine.step(self._batch(Phase.PREFILL, [chunk], (start,)))
        self._end((start,))
        return [-entry.logprob for part in result.prompt_logprobs for entry in part.entries]

    def _step(self, phase: Phase, chunks: list[Chunk], started: tuple[SequenceStart, ...]) -> list[int]:
        result = self._engine.step(self._batch(phase, chunks, started))
        if result.failed:
            raise RuntimeError(f"sequence {result.failed[0][0]}: {result.failed[0][1]}")
        return [token.token_id for token in result.sampled]

    def _batch(self, phase: Phase, chunks: list[Chunk], started: tuple[SequenceStart, ...]) -> Batch:
        self._steps += 1
        return Batch(step_index=self._steps, phase=phase, chunks=tuple(chunks), started=started)

    def _end(self, starts: tuple[SequenceStart, ...]) -> None:
        ended = tuple(start.sequence_id for start in starts)
        self._engine.step(Batch(step_index=self._steps, phase=Phase.DECODE, chunks=(), ended=ended))

    def _block_tables(self, lengths: Sequence[int]) -> list[Tokens]:
        """Blocks of their own for sequences of these lengths in tokens."""
        tables = []
        first = 0
        for length in lengths:
            needed = self._engine.kv_layout.blocks_for(length)
            tables.append(tuple(range(first, first + needed)))
            first += needed
        if first > self._engine.num_blocks:
            raise ValueError(f"{first} KV blocks are needed, {self._engine.num_blocks} exist")
        return tables


def perplexity(negative_log_likelihoods: Sequence[float]) -> float:
    """e to the mean negative log likelihood."""
    return math.exp(math.fsum(negative_log_likelihoods) / len(negative_log_likelihoods))
