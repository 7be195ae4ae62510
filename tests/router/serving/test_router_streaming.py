"""Streams: well formed, equal to the whole answer, nothing leaks, nothing is counted wrong (field bugs STR, VAL-5)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

HARD = "Repeat exactly: 삼겹살 안녕 世界 🧑‍🚀 ď é"


async def stream_of(router: Any, path: str, body: dict[str, Any]) -> bytes:
    async with router.http.stream("POST", path, json={**body, "stream": True}) as answer:
        assert answer.status_code == 200, await answer.aread()
        assert answer.headers["content-type"].startswith("text/event-stream")
        return bytes(await answer.aread())


def chunks_of(body: bytes) -> list[dict[str, Any]]:
    events = body.decode().split("\n\n")
    return [json.loads(event.removeprefix("data: ")) for event in events if event and event != "data: [DONE]"]


async def both_ways(router: Any, stream_ok: Any, chat: Any, **fields: Any) -> str:
    """The text, which must be the same streamed and not."""
    streamed = stream_ok(await stream_of(router, "/v1/chat/completions", chat(**fields)))
    whole = await router.http.post("/v1/chat/completions", json=chat(**fields))
    assert streamed == {0: whole.json()["choices"][0]["message"]["content"]}
    return str(streamed[0])


async def test_str_1_no_part_of_a_stop_string_is_streamed(router: Any, replica: Any, stream_ok: Any, chat: Any) -> None:
    replica.say("ABC DEFGHIJ K")
    for per_output in (1, 2, 3, 50):
        replica.per_output = per_output
        assert await both_ways(router, stream_ok, chat, stop="DEFGHIJ") == "ABC "
    replica.say("well\nUser: x")
    assert await both_ways(router, stream_ok, chat, stop=["\nUser:", "ser: x"]) == "well"


async def test_str_2_special_strings_spelled_by_the_model_do_not_leak(
    router: Any, replica: Any, stream_ok: Any, chat: Any
) -> None:
    spelled = [id_ for char in "done<|im_end|>more" for id_ in replica.tokenizer.encode(char).ids]
    replica.reply = lambda request: spelled
    for per_output in (1, 2, 5):
        replica.per_output = per_output
        assert await both_ways(router, stream_ok, chat, stop=["<|im_end|>"]) == "done"


async def test_str_4_no_empty_deltas(router: Any, replica: Any, stream_ok: Any, chat: Any) -> None:
    replica.say(HARD)
    assert await both_ways(router, stream_ok, chat, stop=["XYZXYZXYZXYZ"]) == HARD


async def test_str_5_characters_are_never_cut(router: Any, replica: Any, stream_ok: Any, chat: Any) -> None:
    replica.say(HARD)
    assert await both_ways(router, stream_ok, chat) == HARD
    for max_tokens in range(1, 21):
        text = await both_ways(router, stream_ok, chat, max_tokens=max_tokens)
        assert text.count("\ufffd") <= 1
        assert HARD.startswith(text.removesuffix("\ufffd"))


@pytest.mark.parametrize("fields", [{}, {"stop": "wor"}, {"max_tokens": 2}, {"n": 2}])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_str_7_usage_only_when_asked_for(
    router: Any, stream_ok: Any, chat: Any, path: str, fields: dict[str, Any]
) -> None:
    body = chat(**fields) if "chat" in path else {"model": "tiny", "prompt": "hi", **fields}
    choices = fields.get("n", 1)
    stream_ok(await stream_of(router, path, body), choices=choices)
    for asked in (True, False):
        options = {"stream_options": {"include_usage": asked}}
        stream_ok(await stream_of(router, path, {**body, **options}), include_usage=asked, choices=choices)


async def test_str_8_usage_is_exact_and_never_decreases(router: Any, replica: Any, chat: Any) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for max_tokens in (1, 5):
        body = chat("test " * 40, max_tokens=max_tokens, ignore_eos=True)
        chunks = chunks_of(await stream_of(router, "/v1/chat/completions", {**body, "stream_options": options}))
        usages = [chunk["usage"] for chunk in chunks]
        counts = [usage["completion_tokens"] for usage in usages]
        assert counts == sorted(counts)
        assert counts[-1] == max_tokens
        assert {usage["prompt_tokens"] for usage in usages} == {len(replica.submits[-1].prompt_token_ids)}
        whole = await router.http.post("/v1/chat/completions", json=body)
        assert whole.json()["usage"] == usages[-1]


async def test_str_10_the_status_comes_before_any_body(router: Any, error_ok: Any, chat: Any) -> None:
    bad = chat("long " * 1000)
    whole = await router.http.post("/v1/chat/completions", json=bad)
    streamed = await router.http.post("/v1/chat/completions", json={**bad, "stream": True})
    assert streamed.json() == whole.json()
    await error_ok(router.http, streamed, 400, "messages")


async def test_chk_3_nothing_is_streamed_before_the_first_token(router: Any, gated: Any, chat: Any) -> None:
    """Not even the status: until a token comes the answer may still be an error."""
    request = router.http.build_request("POST", "/v1/chat/completions", json=chat(stream=True), timeout=0.3)
    with pytest.raises(Exception, match=r"^$|timed out"):
        await router.http.send(request, stream=True)
    await router.wait_idle(gated)


async def test_tokens_that_come_together_leave_together(router: Any, replica: Any, chat: Any) -> None:
    replica.per_output = 100
    chunks = chunks_of(await stream_of(router, "/v1/chat/completions", chat()))
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "Hello world"},
    ]


async def test_an_error_after_the_first_token_ends_the_stream(router: Any, replica: Any, chat: Any) -> None:
    replica.fail_after = 2
    body = await stream_of(router, "/v1/chat/completions", chat())
    assert body.endswith(b"data: [DONE]\n\n")
    assert chunks_of(body)[-1]["error"]["code"] == "engine_failure"
    await router.wait_idle(replica)


async def test_an_error_before_the_first_token_is_a_status(router: Any, replica: Any, chat: Any) -> None:
    replica.fail_after = 0
    for stream in (True, False):
        answer = await router.http.post("/v1/chat/completions", json=chat(stream=stream))
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "engine_failure"
    await router.wait_idle(replica)


@pytest.mark.parametrize("prompt", ["Hello <|im_start|> é🚀", [5, 9, 200, 130], "x"])
@pytest.mark.parametrize("logprobs", [None, 0, 2])
async def test_val_5_echo_offsets_count_from_the_start_of_the_echoed_text(
    router: Any, replica: Any, stream_ok: Any, prompt: Any, logprobs: int | None
) -> None:
    replica.say("tail é")
    body = {"model": "tiny", "prompt": prompt, "echo": True, "logprobs": logprobs, "max_tokens": 9}
    whole = (await router.http.post("/v1/completions", json=body)).json()["choices"][0]
    if isinstance(prompt, str):
        assert whole["text"] == prompt + "tail é"
    raw = await stream_of(router, "/v1/completions", body)
    assert stream_ok(raw) == {0: whole["text"]}
    if logprobs is None:
        assert whole["logprobs"] is None
        return
    parts = [chunk["choices"][0]["logprobs"] for chunk in chunks_of(raw)]
    streamed = {name: [item for part in parts for item in part[name]] for name in parts[0]}
    assert streamed == whole["logprobs"]
    tokens = streamed["tokens"]
    assert streamed["text_offset"] == [len("".join(tokens[:i])) for i in range(len(tokens))]
    assert "".join(tokens) == whole["text"]
    assert streamed["token_logprobs"][0] is None
    assert None not in streamed["token_logprobs"][1:]


async def test_min_tokens_holds_off_stop_strings(router: Any, replica: Any, stream_ok: Any, chat: Any) -> None:
    replica.say("a a a a a a a a")
    assert await both_ways(router, stream_ok, chat, stop="a", min_tokens=4) == "a a "
    answer = await router.http.post("/v1/chat/completions", json=chat(stop="a", min_tokens=4))
    assert answer.json()["usage"]["completion_tokens"] >= 4


async def test_request_id_and_plan_are_in_the_headers(router: Any, chat: Any) -> None:
    answer = await router.http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "t-1"})
    assert answer.json()["id"] == "chatcmpl-t-1"
    assert answer.headers["x-request-id"] == "t-1"
    assert answer.headers["x-phaseserve-layout"] == "colocated"
    assert answer.headers["x-phaseserve-replica"] == "r0"
    assert answer.headers["x-phaseserve-reason"]
    assert float(answer.headers["x-phaseserve-predicted-ttft-s"]) >= 0
    odd = await router.http.post("/v1/chat/completions", json=chat(), headers={"x-request-id": "no spaces"})
    assert odd.headers["x-request-id"] != "no spaces"


async def test_what_arrives_while_a_chunk_is_being_written_is_not_lost(
    start_router: Any, replica: Any, stream_ok: Any, chat: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The whole rest of the answer, its end included, comes while the first chunk is on its way out."""
    from router.event_stream import EventStream

    answer = EventStream.__call__

    async def slow(self: Any, scope: Any, receive: Any, send: Any) -> None:
        async def send_slowly(message: Any) -> None:
            await send(message)
            await asyncio.sleep(0.05)

        await answer(self, scope, receive, send_slowly)

    monkeypatch.setattr(EventStream, "__call__", slow)
    router = await start_router(replica)
    replica.say("one two three four five")
    streamed = stream_ok(await stream_of(router, "/v1/chat/completions", chat(n=2)), choices=2)
    assert streamed == {0: "one two three four five", 1: "one two three four five"}
