"""An engine that computes nothing: how long a step takes, and tokens that end when the answer is to end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.batch import Batch, Chunk, SampledToken, StepResult
from contracts.phase import Phase
from scheduling.step_shape import StepShape
from simulator.cost import NoisySteps
from simulator.pipeline import Pipeline
from simulator.shared_cores import Steps
from simulator.statistics import Sketch
from simulator.workload import EOS, FILLER


@dataclass(slots=True)
class Work:
    """What the engine did: steps and busy seconds by phase (of a pipeline the mean of its stages), rows computed.

    `iteration`: what each step took, of a pipeline in its slowest stage.
    """

    steps: int = 0
    prefill_s: float = 0.0
    decode_s: float = 0.0
    mixed_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0
    iteration: Sketch = field(default_factory=Sketch)

    @property
    def busy_s(self) -> float:
        """All phases together."""
        return self.prefill_s + self.decode_s + self.mixed_s


class SimulatedEngine:
    """Knows, by sequence, the position (prompt counted) of the token that ends its output. Nobody else does, and
    others must not decide by it: `ends_at` is there for what follows from a step that was run."""

    def __init__(self, steps: Steps) -> None:
        self.work = Work()
        self._steps = steps
        num_stages = steps.num_stages if isinstance(steps, NoisySteps) else 1
        self.pipeline = Pipeline(num_stages) if num_stages > 1 else None
        self._free_at = 0.0
        self.ends_at: dict[str, int] = {}
        self._truth: dict[str, tuple[int, SampledToken, SampledToken]] = {}

    def expect(self, sequence_id: str, ends_at: int) -> None:
        """A sequence whose output ends with the token at that position. Its two tokens are made once."""
        more, last = SampledToken(sequence_id, FILLER), SampledToken(sequence_id, EOS)
        self._truth[sequence_id] = (ends_at, more, last)
        self.ends_at[sequence_id] = ends_at

    def forget(self, sequence_id: str) -> None:
        """It is over; a step in flight may still hold it."""
        self._truth.pop(sequence_id, None)
        self.ends_at.pop(sequence_id, None)

    def steps_ahead(self, batch: Batch) -> int:
        """How many decode steps, from this one on, give every stream a token that is not its last; 0 where nobody can
        know how long they take."""
        if self.pipeline is not None or not isinstance(self._steps, NoisySteps):
            return 0
        ends_at = self.ends_at
        return min([ends_at[chunk.sequence_id] - chunk.start for chunk in batch.chunks]) - 1

    def durations_s(self, batch: Batch, count: int) -> tuple[list[float], list[float]]:
        """How long this decode step and those after it take if every stream goes on, and what `give_back` wants."""
        assert isinstance(self._steps, NoisySteps)
        return self._steps.steps_s(_shape_of(batch), count)

    def give_back(self, spreads: list[float]) -> None:
        """The last steps that were asked for do not come."""
        assert isinstance(self._steps, NoisySteps)
        self._steps.give_back(spreads)

    def count_decodes(self, durations_s: Sequence[float], rows: int) -> None:
        """Decode steps of so many rows began."""
        work = self.work
        work.steps += len(durations_s)
        work.output_tokens += rows * len(durations_s)
        work.iteration.extend(durations_s)
        for duration_s in durations_s:
            work.decode_s += duration_s

    def run(self, batch: Batch, now: float) -> tuple[float, float]:
        """In how many seconds this batch has ended, and what it is said to have taken: the same, but where it waits for
        others that were given in before, and in a pipeline, where a step takes what its slowest stage does. It counts
        as done.
        """
        work, shape, pipeline = self.work, _shape_of(batch), self.pipeline
        if pipeline is None:
            said_s = duration_s = self._steps.step_s(shape)
            after_s = max(0.0, self._free_at - now) + duration_s
            self._free_at = now + after_s
        else:
            assert isinstance(self._steps, NoisySteps)
            stage_s, hop_s = self._steps.stage_times_s(shape)
            after_s = pipeline.enter(now, stage_s, hop_s, has_prefill=batch.phase is not Phase.DECODE) - now
            said_s, duration_s = max(stage_s), sum(stage_s) / len(stage_s)
        work.iteration.add(said_s)
        work.steps += 1
        work.output_tokens += shape.decodes
        work.prompt_tokens += shape.tokens - shape.decodes
        if batch.phase is Phase.DECODE:
            work.decode_s += duration_s
        elif batch.phase is Phase.PREFILL:
            work.prefill_s += duration_s
        else:
            work.mixed_s += duration_s
        return after_s, said_s

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


def _shape_of(batch: Batch) -> StepShape:
    shape, chunks = StepShape(), batch.chunks
    if batch.phase is Phase.DECODE:
        shape.add_decodes(len(chunks), sum([chunk.start for chunk in chunks]) + len(chunks))
        return shape
    rows = context = 0
    for chunk in chunks:
        size, start = len(chunk.token_ids), chunk.start
        if size == 1 and start > 0 and chunk.samples:
            rows += 1
            context += start + 1
        else:
            shape.add_prefill(start, size)
    shape.add_decodes(rows, context)
    return shape


def _over(chunk: Chunk) -> tuple[int, SampledToken, SampledToken]:
    last = SampledToken(chunk.sequence_id, EOS)
    return 0, last, last
