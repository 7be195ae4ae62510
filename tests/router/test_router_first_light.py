"""The official client, unchanged, through the router."""

from __future__ import annotations

from typing import Any


async def test_chat_whole(router: Any, replica: Any) -> None:
    answer = await router.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], temperature=0
    )
    assert answer.choices[0].message.content == "Hello world"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.completion_tokens == len(replica.tokenizer.encode("Hello world").ids) + 1


async def test_chat_stream(router: Any, replica: Any) -> None:
    stream = await router.openai.chat.completions.create(
        model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True
    )
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "Hello world"
    assert chunks[-1].choices[0].finish_reason == "stop"
