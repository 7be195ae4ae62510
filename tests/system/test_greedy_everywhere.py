"""Invariant 3 of the design: greedy output is the same, token for token, however it is scheduled (real weights, fp32).

Twenty prompts of 1 to 1,500 tokens, 64 output tokens each. The reference is each prompt alone, prefilled whole; that
reference equals transformers (`tests/engine/test_engine_smollm2.py`). Each case must repeat it exactly.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from contracts.engine import Engine
from contracts.phase import Role
from contracts.replica_io import Emit, LeaseGranted, Refuse, ReplicaAction, RequestArrived, RunStep, StepDone
from contracts.request import FinishReason, Request, SamplingParams
from contracts.views import StepCost
from engine.build import build_engine
from engine.checkpoint.resolve import resolve_model
from engine.config import EngineConfig
from scheduling.config import ReplicaCoreConfig
from scheduling.invariants import assert_nothing_left, check_invariants
from scheduling.replica_core import ReplicaCore

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SENTENCES = (
    "The history of computing began long before the modern computer.",
    "Early devices such as the abacus helped people with arithmetic.",
    "A river carries water from the mountains to the sea, and towns grow where it can be crossed.",
    "Bread needs flour, water, salt and time.",
    "When the sun sets, the sky turns red because blue light is scattered away.",
)
LENGTHS = (1, 2, 3, 7, 15, 16, 17, 31, 33, 64, 100, 127, 129, 200, 256, 333, 512, 700, 1025, 1500)
OUTPUT_TOKENS = 64
COST = StepCost(a0=0.02, a1=0.001, b0=0.0, b1=0.0, b2=0.0, b3=0.001)


def prompts() -> list[tuple[int, ...]]:
    """Running text cut at the lengths above, each from another place."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(resolve_model("smollm2-135m").tokenizer_file))
    draw = random.Random(5)
    text = " ".join(f"{draw.choice(SENTENCES)} ({draw.randrange(1000)})" for _ in range(400))
    ids = tokenizer.encode(text).ids
    return [tuple(ids[start * 40 : start * 40 + length]) for start, length in enumerate(LENGTHS)]


@dataclass(frozen=True)
class Case:
    """How the prompts are run."""

    role: Role = Role.ALTERNATING
    max_chunk: int = 4096
    at_once: int = 1
    prefix_cache: bool = False
    num_blocks: int = 800
    rounds: int = 1
    only_to: int = 1500
    short_before: int = 0

    @property
    def config(self) -> ReplicaCoreConfig:
        return ReplicaCoreConfig(
            admission=f"sarathi({max(self.max_chunk, 20)})", min_chunk=1, max_chunk=self.max_chunk,
            chunk_multiple=1, prefix_cache=self.prefix_cache, max_gap_s=1000.0, output_reserve_quantile=0.0,
        )  # fmt: skip


class Replica:
    """A core and the engine, with time that follows from the steps alone."""

    def __init__(self, engine: Engine, case: Case, num_blocks: int) -> None:
        self.engine = engine
        self.core = ReplicaCore(
            case.config,
            case.role,
            engine.kv_layout,
            num_blocks,
            engine.spec.max_context,
            engine.spec.eos_token_ids,
            COST,
        )
        self.now = 0.0
        self.outputs: dict[str, list[int]] = {}
        self.preemptions = 0

    def run(self, requests: list[Request]) -> None:
        """All of them at once, to the end."""
        actions: list[ReplicaAction] = []
        for request in requests:
            self.outputs[request.request_id] = []
            actions += self.core.handle(LeaseGranted(1000.0), self.now)
            actions += self.core.handle(RequestArrived(request), self.now)
        while actions:
            steps = [action for action in actions if isinstance(action, RunStep)]
            self._take(actions)
            if not steps:
                return
            assert len(steps) == 1
            result = self.engine.step(steps[0].batch)
            self.now += 0.02
            actions = self.core.handle(StepDone(result, 0.02), self.now)
            check_invariants(self.core)

    def _take(self, actions: list[ReplicaAction]) -> None:
        for action in actions:
            assert not isinstance(action, Refuse), action
            if isinstance(action, Emit):
                for output in action.outputs:
                    self.outputs[output.request_id] += output.token_ids
                    if output.finish is not None:
                        assert output.finish is FinishReason.LENGTH
                        assert output.usage is not None
                        self.preemptions += output.usage.preemptions


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    built = build_engine(EngineConfig(model="smollm2-135m", num_blocks=800, block_size=16, threads=2))
    yield built
    built.close()


def request(name: str, prompt: tuple[int, ...], output_tokens: int = OUTPUT_TOKENS) -> Request:
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    return Request(request_id=name, prompt_token_ids=prompt, sampling=sampling)


def outputs_of(engine: Engine, case: Case) -> tuple[dict[int, list[int]], int]:
    """Output tokens by prompt length (every round must agree), and how often a request was preempted."""
    replica = Replica(engine, case, case.num_blocks)
    chosen = [prompt for prompt in prompts() if len(prompt) <= case.only_to]
    for index in range(case.short_before):  # teach the output reserve that outputs are short: it will admit too many
        replica.run([request(f"short:{index}", chosen[0], output_tokens=1)])
    replica.outputs.clear()
    for round_index in range(case.rounds):
        for first in range(0, len(chosen), case.at_once):
            group = chosen[first : first + case.at_once]
            replica.run([request(f"{round_index}:{len(prompt)}", prompt) for prompt in group])
    assert_nothing_left(replica.core)
    by_length: dict[int, list[int]] = {}
    for name, tokens in replica.outputs.items():
        length = int(name.split(":")[1])
        assert by_length.setdefault(length, tokens) == tokens, "rounds disagree"
    return by_length, replica.preemptions


@pytest.fixture(scope="module")
def reference(engine: Engine) -> dict[int, list[int]]:
    tokens, _ = outputs_of(engine, Case())
    assert {len(one) for one in tokens.values()} == {OUTPUT_TOKENS}
    return tokens


CASES = {
    "chunk 1": Case(max_chunk=1, at_once=5, only_to=200),
    "chunk 7": Case(max_chunk=7, at_once=5, only_to=700),
    "chunk 16": Case(max_chunk=16, at_once=5),
    "chunk 128": Case(max_chunk=128, at_once=5),
    "chunk 512": Case(max_chunk=512, at_once=5),
    "16 at once": Case(at_once=16),
    "mixed, 16 at once, chunk 100": Case(role=Role.MIXED, at_once=16, max_chunk=100),
    "mixed, 20 at once, whole": Case(role=Role.MIXED, at_once=20),
    "prefix cache cold and warm, 16 at once": Case(prefix_cache=True, rounds=2, at_once=16, max_chunk=128),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_same_tokens(engine: Engine, reference: dict[int, list[int]], case: Case) -> None:
    tokens, _ = outputs_of(engine, case)
    assert tokens == {length: reference[length] for length in tokens}


def test_the_same_tokens_after_preemption(engine: Engine, reference: dict[int, list[int]]) -> None:
    case = Case(at_once=12, num_blocks=48, only_to=200, max_chunk=128, short_before=30)
    tokens, preemptions = outputs_of(engine, case)
    assert preemptions > 0, "the pool was not small enough to force any"
    assert tokens == {length: reference[length] for length in tokens}
