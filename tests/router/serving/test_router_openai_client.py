"""The official client, unchanged, through the router."""

from __future__ import annotations

import asyncio
from typing import Any

import openai
import pytest

WORDS = "Hello world"
USER = [{"role": "user", "content": "hi"}]


async def test_chat(router: Any, replica: Any) -> None:
    answer = await router.openai.chat.completions.create(model="tiny", messages=USER, temperature=0)
    assert answer.object == "chat.completion"
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].message.content == WORDS
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(replica.submits[0].prompt_token_ids)
    assert answer.usage.completion_tokens == len(replica.tokenizer.encode(WORDS).ids) + 1
    assert replica.submits[0].sampling.temperature == 0
    assert replica.submits[0].sampling.max_tokens == 512 - answer.usage.prompt_tokens


async def test_chat_stream(router: Any) -> None:
    stream = await router.openai.chat.completions.create(model="tiny", messages=USER, stream=True)
    chunks = [chunk async for chunk in stream]
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == WORDS
    assert [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices[0].finish_reason] == ["stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_completion(router: Any, replica: Any) -> None:
    answer = await router.openai.completions.create(model="tiny", prompt="hi", max_tokens=2)
    assert answer.object == "text_completion"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].text == replica.tokenizer.decode(replica.tokenizer.encode(WORDS).ids[:2])


async def test_completion_without_a_bound_gets_sixteen_tokens(router: Any, replica: Any) -> None:
    await router.openai.completions.create(model="tiny", prompt="hi")
    assert replica.submits[0].sampling.max_tokens == 16


async def test_completion_stream(router: Any) -> None:
    stream = await router.openai.completions.create(model="tiny", prompt="hi", stream=True)
    assert "".join([chunk.choices[0].text async for chunk in stream]) == WORDS


async def test_include_usage(router: Any) -> None:
    stream = await router.openai.chat.completions.create(
        model="tiny", messages=USER, stream=True, stream_options={"include_usage": True}
    )
    chunks = [chunk async for chunk in stream]
    whole = await router.openai.chat.completions.create(model="tiny", messages=USER)
    assert chunks[-1].choices == []
    assert chunks[-1].usage == whole.usage
    assert all(chunk.usage is None for chunk in chunks[:-1])


async def test_n(router: Any, replica: Any) -> None:
    def reply(request: Any) -> list[int]:
        number = request.request_id.split("#")[1]
        ids: list[int] = replica.tokenizer.encode(f"choice {number}").ids
        return ids

    replica.reply = reply
    answer = await router.openai.chat.completions.create(model="tiny", messages=USER, n=3, seed=7)
    assert [(choice.index, choice.message.content) for choice in answer.choices] == [
        (i, f"choice {i}") for i in range(3)
    ]
    assert answer.usage.prompt_tokens == len(replica.submits[0].prompt_token_ids)
    assert answer.usage.completion_tokens == sum(len(reply(r)) + 1 for r in replica.submits)
    seeds = [request.sampling.seed for request in replica.submits]
    assert seeds[0] == 7
    assert len(set(seeds)) == 3
    assert len({request.submit_index for request in replica.submits}) == 1


async def test_chat_logprobs(router: Any, replica: Any) -> None:
    answer = await router.openai.chat.completions.create(model="tiny", messages=USER, logprobs=True, top_logprobs=2)
    content = answer.choices[0].logprobs.content
    assert bytes(byte for entry in content for byte in entry.bytes).decode() == WORDS
    assert all(entry.top_logprobs[0].token == entry.token for entry in content)
    assert all(len(entry.top_logprobs) == 2 for entry in content)
    stream = await router.openai.chat.completions.create(
        model="tiny", messages=USER, logprobs=True, top_logprobs=2, stream=True
    )
    streamed = [
        entry async for chunk in stream if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content
    ]
    assert streamed == content


async def test_completion_logprobs(router: Any) -> None:
    answer = await router.openai.completions.create(model="tiny", prompt="hi", logprobs=1)
    logprobs = answer.choices[0].logprobs
    assert "".join(logprobs.tokens) == WORDS
    assert logprobs.text_offset == [len("".join(logprobs.tokens[:i])) for i in range(len(logprobs.tokens))]
    assert all(token in top for token, top in zip(logprobs.tokens, logprobs.top_logprobs, strict=True))


async def test_stop(router: Any, replica: Any) -> None:
    replica.pace_s = 0.01
    answer = await router.openai.chat.completions.create(model="tiny", messages=USER, stop=["wor"])
    assert answer.choices[0].message.content == "Hello "
    assert answer.choices[0].finish_reason == "stop"
    await router.wait_idle(replica)


async def test_seed_and_every_other_rule_reach_the_replica(router: Any, replica: Any) -> None:
    await router.openai.chat.completions.create(
        model="tiny",
        messages=USER,
        seed=11,
        top_p=0.5,
        presence_penalty=0.1,
        frequency_penalty=-0.2,
        logit_bias={"7": -5},
        max_completion_tokens=9,
        user="someone",
        extra_body={
            "top_k": 4,
            "min_p": 0.2,
            "repetition_penalty": 1.2,
            "min_tokens": 2,
            "stop_token_ids": [9],
            "ignore_eos": True,
            "priority": 3,
        },
    )
    request = replica.submits[0]
    sampling = request.sampling
    assert (sampling.seed, sampling.top_p, sampling.top_k, sampling.min_p) == (11, 0.5, 4, 0.2)
    assert (sampling.presence_penalty, sampling.frequency_penalty, sampling.repetition_penalty) == (0.1, -0.2, 1.2)
    assert sampling.logit_bias == {7: -5}
    assert (sampling.max_tokens, sampling.min_tokens, sampling.stop_token_ids) == (9, 2, (9,))
    assert sampling.ignore_eos
    assert request.priority == 3


async def test_cancelling_the_client_task(router: Any, replica: Any) -> None:
    replica.gate.clear()
    task = asyncio.create_task(router.openai.chat.completions.create(model="tiny", messages=USER))
    async with asyncio.timeout(5):
        while not replica.alive:  # noqa: ASYNC110  (the replica has no event for it)
            await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await router.wait_idle(replica)
    assert replica.cancelled == [replica.submits[0].request_id]


async def test_closing_a_stream(router: Any, replica: Any) -> None:
    replica.pace_s = 0.01
    stream = await router.openai.chat.completions.create(
        model="tiny", messages=USER, stream=True, extra_body={"ignore_eos": True}
    )
    async for chunk in stream:
        if chunk.choices[0].delta.content:
            break
    await stream.close()
    await router.wait_idle(replica)
    assert len(replica.cancelled) == 1


async def test_errors_are_the_clients_own_classes(router: Any) -> None:
    with pytest.raises(openai.BadRequestError) as wrong:
        await router.openai.chat.completions.create(model="tiny", messages=[])
    assert wrong.value.param == "messages"
    with pytest.raises(openai.NotFoundError):
        await router.openai.chat.completions.create(model="other", messages=USER)


async def test_models(router: Any) -> None:
    assert [model.id async for model in router.openai.models.list()] == ["tiny"]
    assert (await router.openai.models.retrieve("tiny")).id == "tiny"
