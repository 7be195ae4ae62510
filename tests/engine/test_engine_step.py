"""One engine step: logits only where asked, one bad sequence fails alone, layer ranges compose, bad batches refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from contracts.batch import Batch, Chunk, SequenceStart, TokenLogprobs
from contracts.engine import Engine
from contracts.errors import EngineFailure
from contracts.phase import Phase
from contracts.request import SamplingParams
from engine import torch_engine
from engine.build import assemble_engine
from engine.config import EngineConfig
from engine.sampling.sampler import Sampler
from engine.torch_engine import TorchEngine
from engine.torch_executor import TorchExecutor

GREEDY = SamplingParams(temperature=0.0, max_tokens=8)


def batch(*chunks: Chunk, started: tuple[SequenceStart, ...] = (), ended: tuple[str, ...] = ()) -> Batch:
    return Batch(step_index=7, phase=Phase.MIXED, chunks=chunks, started=started, ended=ended)


@pytest.fixture
def engine(make_tiny: Any, executor: str) -> TorchEngine:
    return engine_of(make_tiny("Llama"), executor=executor)


def engine_of(model: Any, **config: Any) -> TorchEngine:
    chosen = EngineConfig(**{"device": "cpu", "num_blocks": 32, **config})
    sampler = Sampler(model.spec.vocab_size, model.spec.eos_token_ids, 0)
    return assemble_engine(model.spec, model.weight_files, chosen, sampler)


def kv_of(engine: Engine) -> Any:
    """The KV memory, float32 [num_layers, num_blocks, 2, num_kv_heads, block_size, head_dim]."""
    layout = engine.kv_layout
    assert engine.kv_memory is not None
    shape = (layout.num_layers, engine.num_blocks, 2, layout.num_kv_heads, layout.block_size, layout.head_dim)
    return np.frombuffer(engine.kv_memory, dtype=np.float32).reshape(shape)


def greedy(
    engine: Engine, prompt: list[int], count: int, on_layer_done: Callable[[int], None] | None = None
) -> list[int]:
    """`count` greedy tokens of one sequence, the prompt in one chunk."""
    start = SequenceStart("g", tuple(prompt), GREEDY)
    table = tuple(range(8))
    first = batch(Chunk("g", tuple(prompt), 0, table, True), started=(start,))
    out = [engine.step(first, on_layer_done).sampled[0].token_id]
    for position in range(len(prompt), len(prompt) + count - 1):
        decode = batch(Chunk("g", (out[-1],), position, table, True))
        out.append(engine.step(decode, on_layer_done).sampled[0].token_id)
    return out


def test_greedy_tokens_equal_transformers(engine: TorchEngine, make_tiny: Any, tokens: Any) -> None:
    prompt = tokens(20, 3)
    model, want = make_tiny("Llama"), list(prompt)
    for _ in range(12):
        want.append(int(model.logits(want)[-1].argmax()))
    assert greedy(engine, prompt, 12) == want[20:]


def test_logits_are_computed_for_asked_rows_only(make_tiny: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    computed: list[int] = []
    whole = TorchExecutor.logits

    def counting(self: TorchExecutor, rows: torch.Tensor) -> torch.Tensor:
        computed.append(rows.shape[0])
        return whole(self, rows)

    monkeypatch.setattr(TorchExecutor, "logits", counting)
    monkeypatch.setattr(torch_engine, "_PROMPT_ROWS", 4)
    engine = engine_of(make_tiny("Llama"), executor="torch")
    started = tuple(SequenceStart(name, tuple(tokens(10, 1)), GREEDY) for name in "abc")
    chunks = [Chunk(name, tuple(tokens(10, 1)), 0, (index,), name != "b") for index, name in enumerate("abc")]
    result = engine.step(batch(*chunks, started=started))
    assert computed == [2]
    assert [token.sequence_id for token in result.sampled] == ["a", "c"]
    computed.clear()
    assert engine.step(batch(Chunk("b", (1,), 10, (1,), False))).sampled == ()
    assert computed == []
    engine.step(batch(Chunk("a", tuple(tokens(10, 1)), 0, (3,), False, True)))
    assert computed == [4, 4, 1]


def test_prompt_logprobs_of_all_chunks_cover_the_prompt_once(
    executor: str, make_tiny: Any, tokens: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch_engine, "_PROMPT_ROWS", 3)
    model = make_tiny("Llama")
    engine = engine_of(model, executor=executor)
    prompt = tokens(21, 4)
    sampling = SamplingParams(temperature=0.0, max_tokens=2, prompt_logprobs=2)
    started = (SequenceStart("p", tuple(prompt), sampling),)
    found: list[TokenLogprobs] = []
    for begin, end in ((0, 1), (1, 9), (9, 20), (20, 21)):
        chunk = Chunk("p", tuple(prompt[begin:end]), begin, (5, 2), end == 21, True)
        result = engine.step(batch(chunk, started=started if begin == 0 else ()))
        for part in result.prompt_logprobs:
            assert part.first == len(found) + 1
            found += part.entries
    assert result.prompt_logprobs == ()
    assert [entry.token_id for entry in found] == prompt[1:]
    want = model.logits(prompt).log_softmax(-1)
    for position, entry in enumerate(found):
        row = want[position]
        assert entry.logprob == pytest.approx(float(row[prompt[position + 1]]), abs=1e-4)
        assert [value for _, value in entry.top] == pytest.approx(row.topk(2).values.tolist(), abs=1e-4)


def test_layers_are_announced_in_order_when_their_kv_is_in_memory(executor: str, make_tiny: Any, tokens: Any) -> None:
    model = make_tiny("Qwen3", head_dim=16)
    announced, whole = engine_of(model, executor=executor), engine_of(model, executor=executor)
    prompt = tokens(40, 8)
    seen: list[int] = []
    filled: list[tuple[int, ...]] = []

    def layer_done(layer: int) -> None:
        seen.append(layer)
        if len(seen) <= 3:  # the prompt's step: its first two blocks hold KV in the layers so far, and in no later one
            filled.append(tuple(int(kv_of(announced)[at, :2].all(axis=(1, 2, 3, 4)).all()) for at in range(3)))

    assert greedy(announced, prompt, 5, layer_done) == greedy(whole, prompt, 5)
    assert seen == [0, 1, 2] * 5
    assert filled == [(1, 0, 0), (1, 1, 0), (1, 1, 1)]
    assert np.array_equal(kv_of(announced), kv_of(whole))


def test_what_a_callback_raises_reaches_the_caller_and_the_engine_goes_on(
    executor: str, make_tiny: Any, tokens: Any
) -> None:
    engine = engine_of(make_tiny("Llama"), executor=executor)
    seen: list[int] = []

    def broken(layer: int) -> None:
        seen.append(layer)
        raise LookupError(f"layer {layer}")

    with pytest.raises(LookupError, match="layer 0"):
        greedy(engine, tokens(20, 3), 1, broken)
    assert seen == [0]
    assert greedy(engine, tokens(20, 3), 4) == greedy(
        engine_of(make_tiny("Llama"), executor=executor), tokens(20, 3), 4
    )


def test_a_poisoned_sequence_fails_alone_and_leaves_nothing(
    executor: str, make_tiny: Any, tokens: Any, tmp_path: Any
) -> None:
    model = make_tiny("Llama")
    tensors = load_file(model.weight_files[0])
    tensors["model.embed_tokens.weight"][0] = float("nan")
    save_file(tensors, tmp_path / "poisoned.safetensors")
    sampler = Sampler(model.spec.vocab_size, model.spec.eos_token_ids, 0)
    config = EngineConfig(device="cpu", num_blocks=4, executor=executor)  # type: ignore[arg-type]
    engine = assemble_engine(model.spec, [tmp_path / "poisoned.safetensors"], config, sampler)
    good, bad = [token or 1 for token in tokens(18, 1)], [1, 2, 0, 4] * 6
    started = (SequenceStart("good", tuple(good), GREEDY), SequenceStart("bad", tuple(bad), GREEDY))
    chunks = (Chunk("bad", tuple(bad), 0, (3, 1), True, True), Chunk("good", tuple(good), 0, (0, 2), True))
    result = engine.step(batch(*chunks, started=started))
    assert [token.sequence_id for token in result.sampled] == ["good"]
    assert [sequence_id for sequence_id, _ in result.failed] == ["bad"]
    assert "not finite" in result.failed[0][1]
    first = result.sampled[0]

    engine.step(batch(ended=("bad", "good")))
    start = SequenceStart("new", tuple(good), GREEDY)
    again = engine.step(batch(Chunk("new", tuple(good), 0, (1, 3), True), started=(start,)))
    assert again.sampled[0].token_id == first.token_id
    following = engine.step(batch(Chunk("new", (first.token_id,), len(good), (1, 3), True)))
    assert following.sampled[0].token_id == int(model.logits([*good, first.token_id])[-1].argmax())


def test_int8_logits_are_close(executor: str, make_tiny: Any, make_driver: Any, tokens: Any) -> None:
    model = make_tiny("Llama")
    prompt = tokens(60, 2)
    driver = make_driver(model, executor=executor, quantization="int8")
    driver.start("q", prompt)
    want = model.logits(prompt)
    got = driver.run("q", 13)
    # Random weights forgive nothing: each of the 3 layers adds about 2 %, and near-ties of random logits flip.
    assert 1e-5 < float((got - want).norm() / want.norm()) < 0.15
    assert float((got.argmax(-1) == want.argmax(-1)).float().mean()) > 0.8


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_close(dtype: str, make_tiny: Any, make_driver: Any, tokens: Any) -> None:
    model = make_tiny("Qwen2")
    prompt = tokens(50, 2)
    driver = make_driver(model, executor="torch", dtype=dtype)
    driver.start("h", prompt)
    want = model.logits(prompt)
    error = (driver.run("h", 16) - want).norm() / want.norm()
    assert 1e-5 < float(error) < 0.08


def test_starts_and_ends_are_idempotent(engine: TorchEngine) -> None:
    start = SequenceStart("s", (1, 2, 3), GREEDY)
    first = engine.step(batch(Chunk("s", (1, 2, 3), 0, (0,), True), started=(start, start)))
    assert engine.step(batch(ended=("s", "s", "unknown"), started=())).sampled == ()
    second = engine.step(batch(Chunk("s", (1, 2, 3), 0, (4,), True), started=(start,)))
    assert first.sampled == second.sampled


@pytest.mark.parametrize(
    ("chunk", "reason"),
    [
        (Chunk("s", (), 0, (0,), True), "at least one token"),
        (Chunk("s", (1,) * 17, 0, (0,), True), "does not cover"),
        (Chunk("s", (1,), 0, (32,), True), "block id 32"),
        (Chunk("s", (1,), 0, (-1,), True), "block id -1"),
        (Chunk("s", (96,), 0, (0,), True), "token id 96"),
        (Chunk("s", (-1,), 0, (0,), True), "token id -1"),
        (Chunk("s", (1,), 256, tuple(range(17)), True), "position 256"),
        (Chunk("s", (1,), 0, (0,), True), "never started"),
    ],
)
def test_a_bad_batch_is_refused_with_its_reason(engine: TorchEngine, chunk: Chunk, reason: str) -> None:
    with pytest.raises(EngineFailure, match=reason):
        engine.step(batch(chunk))


def test_a_closed_engine_refuses_and_closes_again(engine: TorchEngine) -> None:
    engine.close()
    engine.close()
    with pytest.raises(EngineFailure, match="closed"):
        engine.step(batch())
