"""Every 4xx comes before any token, in OpenAI's shape, names the field, is the same streamed, and harms nothing."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="module")

CONTEXT = 512
USER = {"role": "user", "content": "hi"}
BOTH = ("/v1/chat/completions", "/v1/completions")

SHARED: list[tuple[dict[str, Any], str | None]] = [
    ({"max_tokens": 0}, "max_tokens"),
    ({"max_tokens": -1}, "max_tokens"),
    ({"max_tokens": 1.5}, "max_tokens"),
    ({"max_tokens": "5"}, "max_tokens"),
    ({"max_tokens": True}, "max_tokens"),
    ({"max_tokens": CONTEXT}, "max_tokens"),
    ({"max_tokens": 10**30}, "max_tokens"),
    ({"min_tokens": -1}, "min_tokens"),
    ({"min_tokens": 9, "max_tokens": 8}, "min_tokens"),
    ({"temperature": -0.1}, "temperature"),
    ({"temperature": 2.5}, "temperature"),
    ({"temperature": "hot"}, "temperature"),
    ({"temperature": []}, "temperature"),
    ({"top_p": 0}, "top_p"),
    ({"top_p": 1.1}, "top_p"),
    ({"top_k": -2}, "top_k"),
    ({"min_p": 2}, "min_p"),
    ({"n": 0}, "n"),
    ({"n": 17}, "n"),
    ({"n": "2"}, "n"),
    ({"stop": ""}, "stop"),
    ({"stop": [""]}, "stop"),
    ({"stop": ["x"] * 17}, "stop"),
    ({"stop": ["x" * 257]}, "stop"),
    ({"stop": [1]}, "stop[0]"),
    ({"stop": 5}, "stop"),
    ({"stop_token_ids": [400]}, "stop_token_ids"),
    ({"stop_token_ids": [-1]}, "stop_token_ids[0]"),
    ({"stop_token_ids": [7] * 257}, "stop_token_ids"),
    ({"seed": "x"}, "seed"),
    ({"seed": 2**63}, "seed"),
    ({"presence_penalty": 2.1}, "presence_penalty"),
    ({"frequency_penalty": -2.1}, "frequency_penalty"),
    ({"repetition_penalty": 0}, "repetition_penalty"),
    ({"repetition_penalty": 1e-45}, "repetition_penalty"),
    ({"repetition_penalty": 1e-300}, "repetition_penalty"),
    ({"repetition_penalty": 100.5}, "repetition_penalty"),
    ({"logit_bias": {"x": 1}}, "logit_bias"),
    ({"logit_bias": {"400": 1}}, "logit_bias"),
    ({"logit_bias": {"-1": 1}}, "logit_bias"),
    ({"logit_bias": {"5": 101}}, "logit_bias"),
    ({"logit_bias": [5]}, "logit_bias"),
    ({"stream": "yes"}, "stream"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"stream": True, "stream_options": {"usage": True}}, "stream_options.usage"),
    ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
    ({"user": 5}, "user"),
    ({"metadata": {"a": 1}}, "metadata"),
    ({"priority": 2**31}, "priority"),
    ({"ignore_eos": "no"}, "ignore_eos"),
    ({"model": 5}, "model"),
    ({"response_format": {"type": "json_object"}}, "response_format"),
    ({"store": True}, "store"),
    ({"service_tier": "flex"}, "service_tier"),
    ({"extra_field": 1}, "extra_field"),
    ({"guided_json": {}}, "guided_json"),
    ({"use_beam_search": True}, "use_beam_search"),
    ({"chat_template": "{{ messages }}"}, "chat_template"),
]

CHAT: list[tuple[dict[str, Any], str | None]] = [
    ({"messages": []}, "messages"),
    ({"messages": "hi"}, "messages"),
    ({"messages": ["hi"]}, "messages[0]"),
    ({"messages": None}, "messages"),
    ({"messages": [USER, {"role": "robot", "content": "x"}]}, "messages[1].role"),
    ({"messages": [{"content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": None}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": 5}]}, "messages[0].content"),
    ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": [{"type": "text", "text": 5}]}]}, "messages[0].content[0]"),
    ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
    ({"messages": [USER, {"role": "assistant", "content": None}]}, "messages[1]"),
    ({"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": [{}]}]}, "messages[1].tool_calls"),
    ({"messages": [{"role": "user", "content": "a " * CONTEXT}]}, "messages"),
    ({"messages": [{"role": "user", "content": "a " * CONTEXT * 100}]}, "messages"),
    ({"max_completion_tokens": 0}, "max_completion_tokens"),
    ({"max_completion_tokens": CONTEXT}, "max_completion_tokens"),
    ({"max_completion_tokens": 5, "max_tokens": 6}, "max_completion_tokens"),
    ({"logprobs": 2}, "logprobs"),
    ({"top_logprobs": 2}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    ({"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
    ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
    ({"tool_choice": "auto"}, "tool_choice"),
    ({"functions": [{"name": "f"}]}, "functions"),
    ({"parallel_tool_calls": True}, "parallel_tool_calls"),
    ({"modalities": ["text", "audio"]}, "modalities"),
    ({"audio": {"voice": "x"}}, "audio"),
    ({"reasoning_effort": "high"}, "reasoning_effort"),
    ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
    ({"web_search_options": {}}, "web_search_options"),
    ({"echo": True}, "echo"),
    ({"continue_final_message": True, "add_generation_prompt": True}, "continue_final_message"),
    ({"continue_final_message": True}, "messages[0]"),
    ({"prompt": "x"}, "prompt"),
]

COMPLETIONS: list[tuple[dict[str, Any], str | None]] = [
    ({"prompt": ""}, "prompt"),
    ({"prompt": [""]}, "prompt[0]"),
    ({"prompt": []}, "prompt"),
    ({"prompt": [[]]}, "prompt[0]"),
    ({"prompt": None}, "prompt"),
    ({"prompt": 5}, "prompt"),
    ({"prompt": {"text": "x"}}, "prompt"),
    ({"prompt": ["x", 5]}, "prompt[1]"),
    ({"prompt": [5, "x"]}, "prompt[1]"),
    ({"prompt": [True]}, "prompt[0]"),
    ({"prompt": [1.5]}, "prompt[0]"),
    ({"prompt": [[1, "x"]]}, "prompt[0][1]"),
    ({"prompt": ["x"] + [5] * CONTEXT}, "prompt"),
    ({"prompt": [5] * CONTEXT + ["x"]}, "prompt"),
    ({"prompt": [400]}, "prompt"),
    ({"prompt": [-1]}, "prompt"),
    ({"prompt": [10**30]}, "prompt"),
    ({"prompt": ["x"] * 65}, "prompt"),
    ({"prompt": ["x"] * 64, "n": 3}, "n"),
    ({"prompt": [5] * CONTEXT}, "prompt"),
    ({"prompt": "a " * (CONTEXT + 1)}, "prompt"),
    ({"prompt": "a " * CONTEXT * 100}, "prompt"),
    ({"prompt": ["x", "a " * (CONTEXT + 1)]}, "prompt[1]"),
    ({"logprobs": 21}, "logprobs"),
    ({"logprobs": True}, "logprobs"),
    ({"logprobs": -1}, "logprobs"),
    ({"best_of": 3}, "best_of"),
    ({"best_of": 1, "n": 2}, "best_of"),
    ({"suffix": "end"}, "suffix"),
    ({"max_tokens": 0, "echo": True}, "max_tokens"),
    ({"messages": [USER]}, "messages"),
]


def body_for(path: str, fields: dict[str, Any]) -> dict[str, Any]:
    given = {"messages": [USER]} if "chat" in path else {"prompt": "hi"}
    return {"model": "tiny", **given, **fields}


ROWS = [
    *((path, fields, param) for path in BOTH for fields, param in SHARED),
    *((BOTH[0], fields, param) for fields, param in CHAT),
    *((BOTH[1], fields, param) for fields, param in COMPLETIONS),
]


def _name(row: tuple[str, dict[str, Any], str | None]) -> str:
    return f"{row[0].split('/')[2]}-{json.dumps(row[1])[:60]}"


@pytest.mark.parametrize(("path", "fields", "param"), ROWS, ids=map(_name, ROWS))
async def test_wrong_field_is_named_before_anything_is_dispatched(
    client: Any, error_ok: Any, path: str, fields: dict[str, Any], param: str | None
) -> None:
    before = len(client.replica.submits)
    answer = await client.post(path, json=body_for(path, fields))
    assert len(client.replica.submits) == before
    message = await error_ok(client, answer, 400, param)
    assert message
    if "stream" not in fields:
        streamed = await client.post(path, json=body_for(path, {**fields, "stream": True}))
        if "stream_options" not in fields:
            assert (streamed.status_code, streamed.json()) == (400, answer.json())


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"5",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "tiny",}',
        b'{"model": "tiny"} x',
        b'{"model": "\\ud800"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
    ],
)
async def test_malformed_json(client: Any, error_ok: Any, path: str, raw: bytes) -> None:
    await error_ok(client, await client.post(path, content=raw), 400)


@pytest.mark.parametrize("path", BOTH)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_are_none_are_named(client: Any, error_ok: Any, path: str, number: str) -> None:
    raw = json.dumps(body_for(path, {"temperature": 0})).replace('"temperature": 0', f'"temperature": {number}')
    await error_ok(client, await client.post(path, content=raw), 400, "temperature")


@pytest.mark.parametrize("path", BOTH)
async def test_unknown_model(client: Any, error_ok: Any, path: str) -> None:
    answer = await client.post(path, json=body_for(path, {"model": "gpt-9"}))
    assert "gpt-9" in await error_ok(client, answer, 404, "model")
    assert answer.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize("path", BOTH)
async def test_missing_fields_are_named(client: Any, error_ok: Any, path: str) -> None:
    await error_ok(
        client, await client.post(path, json={"model": "tiny"}), 400, "messages" if "chat" in path else "prompt"
    )
    await error_ok(client, await client.post(path, json={"messages": [USER]}), 400)


async def test_context_refusals_say_limit_and_length(client: Any, error_ok: Any) -> None:
    answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": [5] * 600})
    message = await error_ok(client, answer, 400, "prompt")
    assert "600" in message
    assert str(CONTEXT) in message
    answer = await client.post("/v1/completions", json={"model": "tiny", "prompt": [5] * 500, "max_tokens": 13})
    message = await error_ok(client, answer, 400, "max_tokens")
    assert "500" in message
    assert str(CONTEXT) in message


async def test_the_whole_context_may_be_used(client: Any) -> None:
    fields = {"model": "tiny", "prompt": [5] * 500, "max_tokens": 12, "ignore_eos": True}
    answer = await client.post("/v1/completions", json=fields)
    assert answer.status_code == 200
    assert answer.json()["usage"] == {
        "prompt_tokens": 500,
        "completion_tokens": 12,
        "total_tokens": 512,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": [], "tool_choice": "none"},
        {"tools": None, "response_format": None, "stop": None, "n": None, "logprobs": None, "seed": None},
        {"response_format": {"type": "text"}, "modalities": ["text"], "store": False, "service_tier": "auto"},
        {"user": "u", "metadata": {"a": "b"}, "priority": -3, "safety_identifier": "s", "prompt_cache_key": "k"},
        {"top_k": -1, "min_p": 0, "top_p": 1, "temperature": 0, "repetition_penalty": 1.1, "stop": []},
        {"logit_bias": {"5": -100}, "stop_token_ids": [7], "min_tokens": 1, "ignore_eos": False},
    ],
)
async def test_what_asks_for_nothing_unsupported_is_accepted(client: Any, fields: dict[str, Any]) -> None:
    answer = await client.post("/v1/chat/completions", json=body_for("chat", fields))
    assert answer.status_code == 200, answer.text


async def test_content_type_does_not_matter(client: Any) -> None:
    raw = json.dumps(body_for("chat", {}))
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        answer = await client.post("/v1/chat/completions", content=raw, headers={"content-type": kind})
        assert answer.status_code == 200


async def test_other_paths_and_methods_answer_in_the_same_shape(client: Any, error_ok: Any) -> None:
    await error_ok(client, await client.get("/v1/nothing"), 404)
    await error_ok(client, await client.get("/v1/chat/completions"), 405)
    await error_ok(client, await client.get("/v1/models/gpt-9"), 404)
    await error_ok(client, await client.get("/decisions?limit=x"), 400, "limit")
    await error_ok(client, await client.get("/decisions?limit=0"), 400, "limit")


async def test_models_tell_the_context(client: Any) -> None:
    listed: httpx.Response = await client.get("/v1/models")
    assert [model["id"] for model in listed.json()["data"]] == ["tiny"]
    assert listed.json()["data"][0]["max_model_len"] == CONTEXT
    assert (await client.get("/v1/models/tiny")).json() == listed.json()["data"][0]
