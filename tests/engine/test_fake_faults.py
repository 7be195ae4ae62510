"""The fake engine under a wrong scheduler: every fault changes the output and is named."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.errors import EngineFailure
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.fake import MAX_FAULTS, FakeEngine, fake_layout, fake_spec

SPEC = fake_spec(vocab_size=997, max_context=64)
PROMPT = tuple(range(100, 120))
TABLE = (3, 1, 4, 7)  # of 8 tokens each


@dataclass
class Walk:
    """One sequence that has its first token, and the engine it runs on."""

    engine: FakeEngine = field(default_factory=lambda: FakeEngine(SPEC, fake_layout(SPEC, block_size=8), 12))
    output: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.step(Chunk("a", PROMPT, 0, TABLE, True), self.started("a", PROMPT))
        assert tuple(self.output) == self.expected(1)

    @staticmethod
    def started(name: str, prompt: tuple[int, ...]) -> SequenceStart:
        return SequenceStart(name, prompt, SamplingParams(temperature=0.0))

    def expected(self, count: int) -> tuple[int, ...]:
        return self.engine.expected_output(self.started("a", PROMPT), count)

    def step(self, chunk: Chunk, *started: SequenceStart) -> None:
        result = self.engine.step(Batch(step_index=0, phase=Phase.MIXED, chunks=(chunk,), started=started))
        self.output += [token.token_id for token in result.sampled if token.sequence_id == "a"]

    def decode(self, *, token_id: int | None = None, at: int | None = None, table: tuple[int, ...] = TABLE) -> None:
        position = len(PROMPT) + len(self.output) - 1
        self.step(Chunk("a", (self.output[-1] if token_id is None else token_id,), at or position, table, True))


def _overwrite(walk: Walk, block: int) -> None:
    other = walk.started("other", (1, 2, 3))
    walk.step(Chunk("other", (1, 2, 3), 0, (block,), True), other)
    walk.decode()


def _compute_again_from_the_wrong_prefix(walk: Walk) -> None:
    walk.step(Chunk("a", PROMPT[8:12], 8, (0, *TABLE[1:]), False))
    walk.decode()


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        (lambda walk: walk.decode(table=(3, 0, 4, 7)), "position 8 (block 0): the block holds something else"),
        (lambda walk: walk.decode(table=(1, 3, 4, 7)), "position 0 (block 1): the block holds something else"),
        (lambda walk: _overwrite(walk, 3), "position 0 (block 3): the block holds something else"),
        (lambda walk: _overwrite(walk, 4), "position 16 (block 4): the block holds something else"),
        (lambda walk: walk.decode(token_id=5), "position 20 (block 4): fed token 5, should be"),
        (lambda walk: walk.decode(at=21), "position 20 (block 4): the block holds something else"),
        (lambda walk: walk.decode(at=19), "position 19 (block 4): fed token"),
        (_compute_again_from_the_wrong_prefix, "position 8 (block 1): the block holds something else"),
        (lambda walk: walk.step(Chunk("a", (119,), 19, TABLE, True)), "samples after 20 tokens, has 21"),
    ],
)
def test_a_fault_of_the_scheduler_changes_the_output_and_is_named(wrong: Callable[[Walk], None], told: str) -> None:
    walk = Walk()
    wrong(walk)
    assert walk.output[0] == walk.expected(1)[0]
    assert walk.output[1] != walk.expected(2)[1]
    assert len(walk.engine.faults) == 1
    assert told in walk.engine.faults[0]


@pytest.mark.parametrize(
    ("chunk", "told"),
    [
        (Chunk("b", (1,), 0, (0,), True), "sequence b was never started"),
        (Chunk("a", (1,), 64, tuple(range(9)), True), "positions 64 to 64 of a context of 64"),
        (Chunk("a", (), 3, TABLE, True), "positions 3 to 2"),
        (Chunk("a", (1,), 24, TABLE[:3], True), "does not cover position 24"),
        (Chunk("a", (1,), 20, (3, 1, 12), True), r"block table \(3, 1, 12\)"),
        (Chunk("a", (1,), 20, (3, -1, 4), True), r"block table \(3, -1, 4\)"),
    ],
)
def test_a_batch_that_leaves_the_cache_raises_by_name(chunk: Chunk, told: str) -> None:
    walk = Walk()
    with pytest.raises(EngineFailure, match=told):
        walk.step(chunk)


def test_faults_are_bounded() -> None:
    walk = Walk()
    for _ in range(MAX_FAULTS + 20):
        walk.step(Chunk("a", (119,), 19, TABLE, True))
    assert len(walk.engine.faults) == MAX_FAULTS
