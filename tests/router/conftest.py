"""A tiny model, the router on a real port, and what every stream and every error must look like."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import msgspec
import openai
import pytest
import uvicorn
from fastapi import FastAPI
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from contracts.model import ModelSpec
from engine.checkpoint.embedded import embedded_gguf
from engine.checkpoint.gguf_file import open_gguf
from engine.checkpoint.gguf_tokenizer import tokenizer_from_gguf
from engine.checkpoint.model_files import ModelFiles, SpecialTokens
from router.app import build_app
from router.config import RouterConfig
from router.http_protocol import PlainHttpProtocol
from router.token_table import TokenTable

BOS, EOS = 1, 2
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
TRAINED_ON = ["Hello world, the quick brown fox jumps over the lazy dog. ABC DEFGHIJ", "안녕 世界 é ď 🚀"]


@pytest.fixture(scope="session")
def tiny_tokenizer() -> Tokenizer:
    """Byte-level BPE with 400 tokens: every byte is one, so characters are cut into several tokens."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = [AddedToken(text, special=True) for text in ("<|endoftext|>", "<|im_start|>", "<|im_end|>")]
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=specials,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TRAINED_ON, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def model_files(tiny_tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> ModelFiles:
    """What `resolve_model` would say of a tiny model; there are no weights."""
    directory = tmp_path_factory.mktemp("tiny")
    tiny_tokenizer.save(str(directory / "tokenizer.json"))
    return files_of(directory, tiny_tokenizer.get_vocab_size())


def files_of(directory: Path, vocab_size: int, max_context: int = 512) -> ModelFiles:
    spec = ModelSpec(
        name="tiny",
        family="llama",
        vocab_size=vocab_size,
        hidden_size=8,
        intermediate_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        rms_norm_eps=1e-5,
        rope_theta=1e4,
        max_context=max_context,
        tie_word_embeddings=True,
        eos_token_ids=(EOS,),
        digest="d1",
    )
    return ModelFiles(
        name="tiny",
        served_name="tiny",
        directory=directory,
        spec=spec,
        weight_files=(),
        tokenizer_file=directory / "tokenizer.json",
        chat_template=CHATML,
        special_tokens=SpecialTokens(bos="<|im_start|>", eos="<|im_end|>"),
        add_bos=False,
    )


@pytest.fixture(scope="session")
def smol_tokenizer() -> Tokenizer:
    """The tokenizer of the embedded default model."""
    with open_gguf(embedded_gguf("smollm2-135m")) as file:
        return tokenizer_from_gguf(file)


@pytest.fixture(scope="session")
def tiny_table(tiny_tokenizer: Tokenizer) -> TokenTable:
    return TokenTable(tiny_tokenizer)


@pytest.fixture(scope="session")
def smol_table(smol_tokenizer: Tokenizer) -> TokenTable:
    return TokenTable(smol_tokenizer)


async def eventually(condition: Callable[[], bool], deadline_s: float = 5.0) -> None:
    """Returns once `condition` holds; raises `TimeoutError` when it does not within the deadline."""
    async with asyncio.timeout(deadline_s):
        while not condition():  # noqa: ASYNC110  (any condition, not only those that set an event)
            await asyncio.sleep(0.005)


class RunningRouter:
    """The router behind a real port, with the official client and a plain one."""

    def __init__(self, app: FastAPI, url: str) -> None:
        self.app = app
        self.url = url
        self.fleet = app.state.served.fleet
        self.openai = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
        self.http = httpx.AsyncClient(base_url=url, timeout=20)

    async def wait_ready(self) -> None:
        await eventually(lambda: self.fleet.not_ready() is None)

    async def wait_idle(self, *replicas: Any) -> None:
        """Nothing is left anywhere."""
        await eventually(lambda: self.fleet.num_flights == 0 and not any(replica.alive for replica in replicas))

    async def close(self) -> None:
        await self.openai.close()
        await self.http.aclose()


StartRouter = Callable[..., Awaitable[RunningRouter]]


@pytest.fixture
async def start_router(model_files: ModelFiles) -> AsyncIterator[StartRouter]:
    """`await start_router(replica, ..., **settings)`: a router over these replicas, ready unless `ready=False`."""
    async with contextlib.AsyncExitStack() as stack:

        async def start(*replicas: Any, ready: bool = True, **settings: Any) -> RunningRouter:
            files = settings.pop("files", model_files)
            known = {"model": "tiny", "replicas": tuple(r.endpoint for r in replicas), **settings}
            config = msgspec.convert(known, RouterConfig)
            running = await stack.enter_async_context(serving(config, files))
            if ready:
                await running.wait_ready()
            return running

        yield start


@contextlib.asynccontextmanager
async def serving(config: RouterConfig, files: ModelFiles) -> AsyncIterator[RunningRouter]:
    app = build_app(config, files)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        server = uvicorn.Server(
            uvicorn.Config(
                app,
                http=PlainHttpProtocol,
                ws="none",
                log_config=None,
                lifespan="on",
                timeout_graceful_shutdown=2,
                access_log=False,
            )
        )
        task = asyncio.create_task(server._serve(sockets=[listener]))
        while not server.started:
            if task.done():
                task.result()
            await asyncio.sleep(0.005)
        running = RunningRouter(app, f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            yield running
        finally:
            await running.close()
            server.should_exit = True
            await task


class StreamCheck:
    """S-OK: what every stream must look like. Returns the texts by choice."""

    def __call__(self, body: bytes, *, include_usage: bool = False, choices: int = 1) -> dict[int, str]:
        events = [event for event in body.decode().split("\n\n") if event]
        assert all(event.startswith("data: ") for event in events)
        assert events[-1] == "data: [DONE]"
        assert events.count("data: [DONE]") == 1
        chunks = [msgspec.json.decode(event.removeprefix("data: ")) for event in events[:-1]]
        assert len({chunk["id"] for chunk in chunks}) == 1
        usage_chunks = [chunk for chunk in chunks if chunk.get("usage") is not None]
        assert len(usage_chunks) == (1 if include_usage else 0)
        if include_usage:
            assert chunks[-1]["usage"] is not None
            assert chunks[-1]["choices"] == []
            assert all("usage" in chunk for chunk in chunks)
            chunks = chunks[:-1]
        texts = dict.fromkeys(range(choices), "")
        finishes = dict.fromkeys(range(choices), 0)
        empty = 0
        for chunk in chunks:
            for choice in chunk["choices"]:
                assert finishes[choice["index"]] == 0, "a chunk after the finish reason"
                text = choice["delta"].get("content", "") if "delta" in choice else choice["text"]
                texts[choice["index"]] += text
                empty += text == ""
                finishes[choice["index"]] += choice["finish_reason"] is not None
        assert empty <= 2 * choices
        assert all(count == 1 for count in finishes.values())
        return texts


@pytest.fixture
def stream_ok() -> StreamCheck:
    return StreamCheck()


class ErrorCheck:
    """E-OK: a status before any body, OpenAI's error object, and a router that still answers."""

    async def __call__(
        self, client: httpx.AsyncClient, answer: httpx.Response, status: int, param: str | None = None
    ) -> str:
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        assert isinstance(error["message"], str)
        if param is not None:
            assert error["param"] == param, error
        again = await client.post("/v1/chat/completions", json=chat_body())
        assert again.status_code == 200, again.text
        return str(error["message"])


@pytest.fixture
def error_ok() -> ErrorCheck:
    return ErrorCheck()


def chat_body(words: str = "hi", **fields: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": words}], **fields}


@pytest.fixture
def chat() -> Callable[..., dict[str, Any]]:
    """`chat("hi", max_tokens=3)`: a body for /v1/chat/completions."""
    return chat_body
