"""Field bugs CHK: chunk edges are invisible to clients (vllm #14239, #10126, djl-serving #2299, and their kind)."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.system

CHUNK = 64


def ids(count: int, seed: int) -> list[int]:
    """`count` token ids that no other call shares a prefix with."""
    return [1000 + (seed * 7919 + i * 104729) % 40000 for i in range(count)]


def stream(server: Any, body: dict[str, Any]) -> list[tuple[float, dict[str, Any]]]:
    """All chunks with the time of their arrival after sending; checks the form of the stream."""
    chunks, began = [], time.monotonic()
    full = {"model": server.model, "temperature": 0, "stream": True, **body}
    with httpx.stream("POST", f"{server.url}/v1/completions", json=full, timeout=60) as answer:
        assert answer.status_code == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        data = [line[5:].strip() for line in answer.iter_lines() if line.startswith("data:")]
    assert data[-1] == "[DONE]"
    assert data.count("[DONE]") == 1
    for one in data[:-1]:
        chunks.append((time.monotonic() - began, json.loads(one)))
    assert len({chunk["id"] for _, chunk in chunks}) == 1
    finishes = [c["finish_reason"] for _, chunk in chunks for c in chunk["choices"] if c["finish_reason"]]
    assert len(finishes) == 1
    return chunks


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK - 1, 2 * CHUNK, 2 * CHUNK + 1, 1000])
def test_prompt_logprobs_do_not_depend_on_chunks(chunked: Any, oracle: Any, count: int) -> None:
    body = {"echo": True, "logprobs": 1, "max_tokens": 1}
    prompt = ids(count, seed=count)
    got = chunked.completion(prompt, **body)["choices"][0]["logprobs"]
    want = oracle.completion(prompt, **body)["choices"][0]["logprobs"]
    assert len(got["token_logprobs"]) == count + 1
    assert got["tokens"] == want["tokens"]
    assert got["token_logprobs"][0] is None
    assert want["token_logprobs"][0] is None
    worst = max(abs(a - b) for a, b in zip(got["token_logprobs"][1:], want["token_logprobs"][1:], strict=True))
    assert worst <= 1e-3


@pytest.mark.parametrize("count", [CHUNK - 1, CHUNK, CHUNK + 1, 2 * CHUNK, 2 * CHUNK + 1])
def test_a_streamed_answer_does_not_depend_on_chunks(chunked: Any, oracle: Any, count: int) -> None:
    prompt = ids(count, seed=10 + count)
    chunks = stream(chunked, {"prompt": prompt, "max_tokens": 12})
    streamed = "".join(c["text"] for _, chunk in chunks for c in chunk["choices"])
    assert streamed == chunked.text(prompt, max_tokens=12) == oracle.text(prompt, max_tokens=12)


def test_nothing_is_streamed_before_the_last_chunk(chunked: Any) -> None:
    chunks = stream(
        chunked, {"prompt": ids(8 * CHUNK, seed=99), "max_tokens": 3, "stream_options": {"include_usage": True}}
    )
    usage = chunks[-1][1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (8 * CHUNK, 3)
    with_text = [chunk for _, chunk in chunks if chunk["choices"] and chunk["choices"][0]["text"]]
    assert 1 <= len(with_text) <= 3


def test_usage_of_a_chunked_prompt_is_exact_streamed_and_not(chunked: Any) -> None:
    for max_tokens in (1, 5):
        body = {"prompt": "test " * 1000, "max_tokens": max_tokens, "ignore_eos": True}
        plain = chunked.completion(body["prompt"], max_tokens=max_tokens, ignore_eos=True)["usage"]
        options = {"include_usage": True, "continuous_usage_stats": True}
        chunks = stream(chunked, {**body, "stream_options": options})
        final = chunks[-1][1]
        assert final["choices"] == []
        assert final["usage"]["completion_tokens"] == plain["completion_tokens"] == max_tokens
        seen = [chunk["usage"] for _, chunk in chunks if chunk.get("usage")]
        assert {usage["prompt_tokens"] for usage in seen} == {plain["prompt_tokens"]}
        counts = [usage["completion_tokens"] for usage in seen]
        assert counts == sorted(counts)
