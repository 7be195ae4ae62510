"""A replica core with a fake engine on a virtual clock, checked after every event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from contracts.batch import Batch, Chunk, SequenceStart, StepResult, TokenLogprobs
from contracts.errors import EngineFailure, ErrorInfo
from contracts.handoff import DecodeLeg, PrefillLeg
from contracts.phase import Role
from contracts.replica_io import (
    Emit,
    Refuse,
    ReplicaAction,
    ReplicaEvent,
    RequestArrived,
    RunStep,
    SayDrained,
    SequenceOutput,
    SequenceUsage,
    StepDone,
    StepFailed,
)
from contracts.request import FinishReason, Request, SamplingParams, Slo
from contracts.views import StepCost
from engine.fake import FakeEngine, fake_layout, fake_spec
from scheduling.config import ReplicaCoreConfig
from scheduling.invariants import assert_nothing_left, check_invariants
from scheduling.replica_core import ReplicaCore
from scheduling.step_cost import predict_step_s

COST = StepCost(a0=0.010, a1=0.001, b0=1e-8, b1=1e-8, b2=1e-6, b3=0.0005)


@dataclass
class Ended:
    """Everything one request received."""

    tokens: list[int] = field(default_factory=list)
    token_times: list[float] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    finish: FinishReason | None = None
    stop_token_id: int | None = None
    error: ErrorInfo | None = None
    usage: SequenceUsage | None = None

    @property
    def gaps_s(self) -> list[float]:
        return [late - early for early, late in zip(self.token_times, self.token_times[1:], strict=False)]


def shape_cost_s(batch: Batch, cost: StepCost = COST) -> float:
    """What the step would take if `cost` were the truth."""
    prefill = []
    decodes = context = 0
    for chunk in batch.chunks:
        if len(chunk.token_ids) == 1 and chunk.samples and chunk.start > 0:
            decodes += 1
            context += chunk.start + 1
        else:
            prefill.append((chunk.start, len(chunk.token_ids)))
    return predict_step_s(cost, prefill=tuple(prefill), decodes=decodes, decode_context=context)


class ReplicaLab:
    """Drives one core. `duration` says how long a batch really takes; the clock is `now`.

    A core with a pipeline has several batches in flight, `in_flight` and those `behind` it. They land in order; the
    engine computes each when it lands, or all along the way (`eager`), as the stages of a pipeline would.
    """

    def __init__(
        self,
        role: Role = Role.ALTERNATING,
        *,
        num_blocks: int = 256,
        block_size: int = 4,
        max_context: int = 1024,
        config: ReplicaCoreConfig | None = None,
        cost: StepCost = COST,
        duration: Callable[[Batch], float] = shape_cost_s,
        eos_every: int = 0,
        eager: bool = False,
    ) -> None:
        self.depth = 1 if config is None else config.pipeline_depth
        self.eager = eager
        self.behind: list[Batch] = []
        self.results: dict[int, StepResult | EngineFailure] = {}
        self.spec = fake_spec(vocab_size=64, max_context=max_context)
        self.layout = fake_layout(self.spec, block_size=block_size)
        self.engine = FakeEngine(self.spec, self.layout, num_blocks, eos_every=eos_every)
        self.core = ReplicaCore(
            config or ReplicaCoreConfig(), role, self.layout, num_blocks, max_context, self.spec.eos_token_ids, cost
        )
        self.duration = duration
        self.now = 100.0
        self.in_flight: Batch | None = None
        self.batches: list[tuple[float, Batch]] = []
        self.got: dict[str, Ended] = {}
        self.requests: dict[str, Request] = {}
        self.refused: dict[str, ErrorInfo] = {}
        self.drained = False
        self.actions: list[ReplicaAction] = []

    def send(self, event: ReplicaEvent) -> list[ReplicaAction]:
        """One event now; performs the actions, checks every invariant and that each request ends once."""
        actions = self.core.handle(event, self.now)
        check_invariants(self.core)
        self.actions += actions
        for action in actions:
            match action:
                case RunStep(batch=batch):
                    self._launch(batch)
                case Emit(outputs=outputs):
                    self._receive(outputs)
                case Refuse(request_id=request_id, error=error):
                    self.refused[request_id] = error
                case SayDrained():
                    assert not self.drained, "drained twice"
                    self.drained = True
        assert sum(isinstance(action, Emit) for action in actions) <= 1
        return actions

    def _launch(self, batch: Batch) -> None:
        flying = [] if self.in_flight is None else [self.in_flight, *self.behind]
        assert len(flying) < self.depth, "too many steps in flight"
        assert batch.chunks, "an empty batch"
        busy = {chunk.sequence_id for other in flying for chunk in other.chunks}
        assert not busy & {chunk.sequence_id for chunk in batch.chunks}, "a sequence in two batches in flight"
        if self.in_flight is None:
            self.in_flight = batch
        else:
            self.behind.append(batch)
        self.batches.append((self.now, batch))
        if self.eager:
            self._compute(batch)

    def _compute(self, batch: Batch) -> None:
        try:
            self.results[batch.step_index] = self.engine.step(batch)
        except EngineFailure as error:
            self.results[batch.step_index] = error

    def _receive(self, outputs: tuple[SequenceOutput, ...]) -> None:
        for output in outputs:
            record = self.got[output.request_id]
            assert record.finish is None, "an output after the end"
            made = len(self.requests[output.request_id].output_token_ids) + len(record.tokens)
            assert output.first_index == made, "an output that says the wrong place"
            record.tokens += output.token_ids
            record.token_times += [self.now] * len(output.token_ids)
            for part in output.prompt_logprobs:
                for offset, entry in enumerate(part.entries):
                    assert part.first + offset not in record.prompt_logprobs, "reported twice"
                    record.prompt_logprobs[part.first + offset] = entry
            record.finish = output.finish
            record.stop_token_id = output.stop_token_id
            record.error = output.error
            record.usage = output.usage
            begins = bool(output.token_ids) and len(record.tokens) == len(output.token_ids)
            told = begins or output.finish is not None
            assert (output.usage is not None) == told, "usage comes with the first token and the end"

    def arrive(
        self,
        request_id: str,
        prompt: int | tuple[int, ...],
        max_tokens: int = 4,
        *,
        slo: Slo | None = None,
        priority: int = 0,
        waited_s: float = 0.0,
        submit_index: int = 0,
        sampling: SamplingParams | None = None,
        leg: PrefillLeg | DecodeLeg | None = None,
        output: tuple[int, ...] = (),
    ) -> Ended:
        """A request of so many (distinct to it) prompt tokens, or of these tokens; `output` was made elsewhere."""
        if isinstance(prompt, int):
            seed = sum(map(ord, request_id))
            prompt = tuple(3 + (seed * 31 + i * 7 + i * i * seed) % 60 for i in range(prompt))
        request = Request(
            request_id=request_id,
            prompt_token_ids=prompt,
            sampling=sampling or SamplingParams(temperature=0.0, max_tokens=max_tokens),
            slo=slo or Slo(),
            priority=priority,
            waited_s=waited_s,
            submit_index=submit_index,
            leg=leg,
            output_token_ids=output,
        )
        record = self.got[request_id] = Ended()
        self.requests[request_id] = request
        self.send(RequestArrived(request))
        return record

    def step(self) -> Batch | None:
        """Let the oldest step in flight end; the next one may start. None if nothing runs."""
        batch = self.in_flight
        if batch is None:
            return None
        self.in_flight = self.behind.pop(0) if self.behind else None
        duration = self.duration(batch)
        self.now += duration if 0.0 < duration < 1e6 else 0.0
        if not self.eager:
            self._compute(batch)
        result = self.results.pop(batch.step_index)
        if isinstance(result, EngineFailure):
            self.send(StepFailed(batch.step_index, str(result)))
        else:
            self.send(StepDone(result, duration))
        return batch

    def run(self, max_steps: int = 5000) -> None:
        """Until nothing runs."""
        for _ in range(max_steps):
            if self.step() is None:
                return
        raise AssertionError("still running")

    def expect_right(self, request_id: str) -> None:
        """The tokens received are those of an undisturbed run."""
        request, record = self.requests[request_id], self.got[request_id]
        start = SequenceStart(request_id, request.prompt_token_ids, request.sampling)
        output = (*request.output_token_ids, *record.tokens)
        assert output == self.engine.expected_output(start, len(output))

    def finish(self) -> None:
        """Run to the end: no fault at the engine, nothing left, every accepted request ended once and right."""
        self.run()
        assert self.engine.faults == []
        assert_nothing_left(self.core)
        for request_id, record in self.got.items():
            assert (record.finish is not None) != (request_id in self.refused), request_id
            if request_id not in self.refused:
                self.expect_right(request_id)

    def chunks_of(self, request_id: str) -> list[Chunk]:
        """All chunks the request was given."""
        return [chunk for _, batch in self.batches for chunk in batch.chunks if chunk.sequence_id == request_id]


@pytest.fixture
def replica_lab() -> type[ReplicaLab]:
    """The class: a test builds its own."""
    return ReplicaLab


@pytest.fixture
def lab_cost() -> StepCost:
    """The cost that is both the lab's truth and the core's start value."""
    return COST
