"""One replica with a real (tiny, random) model: profiled at load, and its greedy tokens are those of transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
import transformers

from contracts import wire
from contracts.request import FinishReason

pytestmark = pytest.mark.system


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A model directory, and transformers' implementation of it."""
    torch.manual_seed(7)
    torch.set_num_threads(1)
    config = transformers.LlamaConfig(
        vocab_size=96,
        hidden_size=64,
        intermediate_size=80,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
    )
    model = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.2)
    directory = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(directory)
    words = {f"w{index}": index for index in range(96)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="w2"))
    tokenizer.save(str(directory / "tokenizer.json"))
    return directory, model


def greedy(model: Any, prompt: tuple[int, ...], count: int) -> list[int]:
    tokens = list(prompt)
    with torch.inference_mode():
        for _ in range(count):
            tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.mark.parametrize("role", ["alternating", "mixed"])
async def test_greedy_streams_of_a_real_model(
    start_replica: Any, connect_router: Any, tiny: tuple[Path, Any], role: str
) -> None:
    directory, model = tiny
    engine = {"model": str(directory), "executor": "torch", "threads": 1, "num_blocks": 128}
    replica = await start_replica(kind="torch", role=role, engine=engine, core={"max_chunk": 64})
    router = await connect_router(replica.endpoint)
    welcome = await router.hello()
    assert welcome.identity.model.vocab_size == 96
    assert welcome.identity.num_blocks == 128
    assert welcome.view.cost.a0 + welcome.view.cost.a1 > 0
    assert "profile steps" in replica.log
    await router.send(wire.Lease(duration_s=60.0))
    prompts = {f"p{count}": tuple((7 * index + count) % 96 for index in range(count)) for count in (1, 3, 40, 150)}
    for request_id, prompt in prompts.items():
        await router.submit(request_id, prompt=prompt, max_tokens=12)
    for request_id, prompt in prompts.items():
        assert (await router.wait_end(request_id, 60)).finish is FinishReason.LENGTH
        assert router.tokens(request_id) == greedy(model, prompt, 12)
    await router.wait_view(lambda view: view.running == 0 and view.free_blocks == view.num_blocks)
    await router.send(wire.Drain())
    await router.wait(wire.Goodbye)
    assert await replica.wait_exit() == 0
