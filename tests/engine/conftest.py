"""Tiny random models with their transformers twins, and a driver that feeds an engine in any chunking."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from contracts.batch import Batch, Chunk, PromptLogprobs, SequenceStart, StepResult
from contracts.model import ModelSpec
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine.build import assemble_engine
from engine.checkpoint.config_file import spec_from_config
from engine.config import EngineConfig
from engine.native_compile import native_available
from engine.sampling.sampler import Sampler, SampleResult
from engine.torch_engine import TorchEngine

torch.set_num_threads(1)

SHAPE = {
    "vocab_size": 96,
    "hidden_size": 64,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
}


@dataclass(frozen=True)
class TinyModel:
    """A random model on disk, its spec, and transformers' implementation of it."""

    directory: Path
    spec: ModelSpec
    reference: Any

    @property
    def weight_files(self) -> list[Path]:
        return sorted(self.directory.glob("*.safetensors"))

    def logits(self, token_ids: Sequence[int]) -> torch.Tensor:
        """transformers' logits of the whole sequence at once, [len, vocab]."""
        with torch.inference_mode():
            found: torch.Tensor = self.reference(torch.tensor([list(token_ids)]), use_cache=False).logits[0]
        return found


MakeTiny = Callable[..., TinyModel]


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory: pytest.TempPathFactory) -> MakeTiny:
    """`make_tiny("Qwen3", **config)`: weights, norms and biases all random, so that each of them shows."""
    made: dict[str, TinyModel] = {}

    def make(family: str, **overrides: Any) -> TinyModel:
        key = f"{family} {sorted(overrides.items())}"
        if key not in made:
            config = getattr(transformers, f"{family}Config")(**{**SHAPE, **overrides})
            config._attn_implementation = "eager"
            torch.manual_seed(len(made))
            reference = getattr(transformers, f"{family}ForCausalLM")(config).eval()
            with torch.no_grad():
                for name, parameter in reference.named_parameters():
                    parameter.normal_(1.0 if "norm" in name else 0.0, 0.2)
            directory = tmp_path_factory.mktemp("model")
            reference.save_pretrained(directory)
            made[key] = TinyModel(directory, spec_from_config(directory, family), reference)
        return made[key]

    return make


class RecordingSampler(Sampler):
    """A sampler that keeps every row of logits it is given."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__(spec.vocab_size, spec.eos_token_ids, 0)
        self.prompt_rows: dict[tuple[str, int], torch.Tensor] = {}
        self.sampled_rows: dict[str, torch.Tensor] = {}

    def sample(self, sequence_ids: Sequence[str], logits: torch.Tensor) -> SampleResult:
        self.sampled_rows.update(zip(sequence_ids, logits.clone(), strict=True))
        return super().sample(sequence_ids, logits)

    def prompt_logprobs(
        self, sequence_id: str, first: int, logits: torch.Tensor, targets: Sequence[int], top: int
    ) -> PromptLogprobs:
        for index, row in enumerate(logits.clone()):
            self.prompt_rows[sequence_id, first - 1 + index] = row
        return super().prompt_logprobs(sequence_id, first, logits, targets, top)


class Driver:
    """Feeds sequences whose tokens are all known beforehand, in chunks, over blocks in random order."""

    def __init__(self, engine: TorchEngine, sampler: RecordingSampler, seed: int = 0) -> None:
        self.engine = engine
        self.sampler = sampler
        self._free = list(range(engine.num_blocks))
        random.Random(seed).shuffle(self._free)
        self.tokens: dict[str, tuple[int, ...]] = {}
        self.done: dict[str, int] = {}
        self.tables: dict[str, list[int]] = {}
        self.steps = 0

    def start(self, sequence_id: str, token_ids: Sequence[int]) -> None:
        self.tokens[sequence_id] = tuple(token_ids)
        self.done[sequence_id] = 0
        self.tables[sequence_id] = []

    def step(self, moves: dict[str, int]) -> StepResult:
        """One batch: the next `moves[id]` tokens of each named sequence. Every row's logits are recorded."""
        started, chunks = [], []
        for sequence_id, count in moves.items():
            tokens, begin = self.tokens[sequence_id], self.done[sequence_id]
            if begin == 0:
                sampling = SamplingParams(temperature=0.0, max_tokens=1, prompt_logprobs=0)
                started.append(SequenceStart(sequence_id, tokens, sampling))
            end = begin + count
            table = self.tables[sequence_id]
            while len(table) * self.engine.kv_layout.block_size < end:
                table.append(self._free.pop())
            chunks.append(Chunk(sequence_id, tokens[begin:end], begin, tuple(table), True, True))
            self.done[sequence_id] = end
        batch = Batch(step_index=self.steps, phase=Phase.MIXED, chunks=tuple(chunks), started=tuple(started))
        self.steps += 1
        result = self.engine.step(batch)
        for sequence_id in moves:
            row = self.sampler.sampled_rows[sequence_id]
            self.sampler.prompt_rows[sequence_id, self.done[sequence_id] - 1] = row
        return result

    def run(self, sequence_id: str, chunk: int) -> torch.Tensor:
        """All of one sequence alone, `chunk` tokens a step: logits [len, vocab]."""
        while (left := len(self.tokens[sequence_id]) - self.done[sequence_id]) > 0:
            self.step({sequence_id: min(chunk, left)})
        return self.logits(sequence_id)

    def logits(self, sequence_id: str) -> torch.Tensor:
        """Logits of every position computed so far, [done, vocab]."""
        return torch.stack([self.sampler.prompt_rows[sequence_id, p] for p in range(self.done[sequence_id])])

    def end(self, *sequence_ids: str) -> None:
        """Forget sequences and free their blocks."""
        self.engine.step(Batch(step_index=self.steps, phase=Phase.MIXED, chunks=(), ended=sequence_ids))
        for sequence_id in sequence_ids:
            self._free += self.tables.pop(sequence_id)


@pytest.fixture(params=["torch", "native"])
def executor(request: pytest.FixtureRequest) -> str:
    """Each executor that this machine can run."""
    name: str = request.param
    if name == "native":
        reason = native_available()
        if reason is not None:
            pytest.skip(reason)
    return name


MakeDriver = Callable[..., Driver]


@pytest.fixture
def make_driver() -> MakeDriver:
    """`make_driver(model, **config)`: an engine on 64 blocks of 16 tokens unless configured otherwise."""

    def make(model: TinyModel, *, seed: int = 0, **config: Any) -> Driver:
        sampler = RecordingSampler(model.spec)
        chosen = EngineConfig(**{"device": "cpu", "num_blocks": 64, **config})
        return Driver(assemble_engine(model.spec, model.weight_files, chosen, sampler), sampler, seed)

    return make


@pytest.fixture
def tokens() -> Callable[[int, int], list[int]]:
    """`tokens(length, seed)`: random token ids of the tiny vocabulary."""

    def make(length: int, seed: int) -> list[int]:
        return random.Random(seed).choices(range(SHAPE["vocab_size"]), k=length)  # type: ignore[call-overload]

    return make
