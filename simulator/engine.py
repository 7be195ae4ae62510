"""An engine that computes nothing: how long a step takes, and tokens that end when the answer is to end."""

from __future__ import annotations

from dataclasses import dataclass

from contracts.batch import Batch, Chunk, SampledToken, StepResult
from contracts.phase import Phase
from scheduling.step_shape import StepShape
from simulator.cost import NoisySteps
from simulator.workload import EOS, FILLER


@dataclass(slots=True)
class Work:
    """What the engine did: steps and busy seconds by phase, rows computed."""

    steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0

    @property
    def busy_s(self) -> float:
        """All phases together."""
        return self.prefill_s + self.decode_s + self.mixed_s


class SimulatedEngine:
    """Knows, by sequence, the position (prompt counted) of the token that ends its output. Nobody else does."""

    def __init__(self, steps: NoisySteps) -> None:
        self.work = Work()
        self._steps = steps
        self._truth: dict[str, tuple[int, SampledToken, SampledToken]] = {}

    def expect(self, sequence_id: str, ends_at: int) -> None:
        """A sequence whose output ends with the token at that position. Its two tokens are made once."""
        more, last = SampledToken(sequence_id, FILLER), SampledToken(sequence_id, EOS)
        self._truth[sequence_id] = (ends_at, more, last)

    def forget(self, sequence_id: str) -> None:
        """It is over; a step in flight may still hold it."""
        self._truth.pop(sequence_id, None)

    def duration_s(self, batch: Batch) -> float:
        """How long this batch takes, in seconds. It counts as done."""
        work, chunks = self.work, batch.chunks
        shape = StepShape()
        if batch.phase is Phase.DECODE:
            shape.add_decodes(len(chunks), sum([chunk.start for chunk in chunks]) + len(chunks))
        else:
            for chunk in chunks:
                size = len(chunk.token_ids)
                if size == 1 and chunk.start > 0 and chunk.samples:
                    shape.add_decodes(1, chunk.start + 1)
                else:
                    shape.add_prefill(chunk.start, size)
        duration_s = self._steps.step_s(shape)
        work.steps += 1
        work.output_tokens += shape.decodes
        work.prompt_tokens += shape.tokens - shape.decodes
        if batch.phase is Phase.DECODE:
            work.decode_s += duration_s
        elif batch.phase is Phase.PREFILL:
            work.prefill_s += duration_s
        else:
            work.mixed_s += duration_s
        return duration_s

    def result(self, batch: Batch) -> StepResult:
        """Its output tokens."""
        truth = self._truth
        if batch.phase is Phase.DECODE:
            sampled = [
                more if chunk.start + 1 < ends_at else last
                for chunk in batch.chunks
                for ends_at, more, last in (truth.get(chunk.sequence_id) or _over(chunk),)
            ]
        else:
            sampled = [
                more if chunk.start + len(chunk.token_ids) < ends_at else last
                for chunk in batch.chunks
                if chunk.samples
                for ends_at, more, last in (truth.get(chunk.sequence_id) or _over(chunk),)
            ]
        return StepResult(step_index=batch.step_index, sampled=tuple(sampled))


def _over(chunk: Chunk) -> tuple[int, SampledToken, SampledToken]:
    last = SampledToken(chunk.sequence_id, EOS)
    return 0, last, last
