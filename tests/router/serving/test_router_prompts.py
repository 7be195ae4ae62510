"""Prompt shapes, chat templates, and every field forwarded (field bugs PAR, TPL)."""

from __future__ import annotations

from typing import Any

import pytest

from contracts.errors import InvalidRequest, ModelError
from engine.checkpoint.model_files import SpecialTokens
from router.chat_template import ChatTemplate

pytestmark = pytest.mark.asyncio(loop_scope="module")

SPECIAL = SpecialTokens(bos="<s>", eos="</s>")
ALTERNATING = (
    "{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}[{{ m['role'] }}]{{ m['content'] }}{% endfor %}"
)


@pytest.mark.parametrize(
    ("prompt", "num_prompts"),
    [("one", 1), (["one", "two"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2), (["one", [5]], 2)],
)
@pytest.mark.parametrize("n", [1, 2])
async def test_par_6_every_prompt_shape(client: Any, stream_ok: Any, prompt: Any, num_prompts: int, n: int) -> None:
    first = len(client.replica.submits)
    body = {"model": "tiny", "prompt": prompt, "n": n, "max_tokens": 40}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    choices = answer.json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(num_prompts * n))
    assert all(choice["text"] == "Hello world" for choice in choices)
    submits = client.replica.submits[first:]
    prompts = {request.request_id.split("#")[0]: len(request.prompt_token_ids) for request in submits}
    assert len(prompts) == num_prompts
    assert answer.json()["usage"]["prompt_tokens"] == sum(prompts.values())
    streamed = await client.post("/v1/completions", json={**body, "stream": True})
    assert stream_ok(streamed.content, choices=num_prompts * n) == dict.fromkeys(range(num_prompts * n), "Hello world")


async def test_tpl_1_templates_are_encoded_without_special_tokens(client: Any, tiny_tokenizer: Any) -> None:
    answer = await client.post(
        "/v1/chat/completions", json={"model": "tiny", "messages": [{"role": "user", "content": "Hi"}]}
    )
    rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    assert list(client.replica.submits[-1].prompt_token_ids) == tiny_tokenizer.encode(rendered).ids
    assert answer.json()["usage"]["prompt_tokens"] == len(tiny_tokenizer.encode(rendered).ids)


async def test_tpl_3_the_message_that_the_template_refuses_is_named() -> None:
    template = ChatTemplate(ALTERNATING, SPECIAL)
    roles = ["user", "assistant", "user", "user", "assistant", "user"]
    with pytest.raises(InvalidRequest, match="must alternate") as refused:
        template.render([{"role": role, "content": "x"} for role in roles], add_generation_prompt=True)
    assert refused.value.param == "messages[3]"


@pytest.mark.parametrize("wrong", range(6))
async def test_tpl_3_wherever_it_stands(wrong: int) -> None:
    refuses = "{% if m['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    template = ChatTemplate("{% for m in messages %}" + refuses + "{% endfor %}", SPECIAL)
    messages = [{"role": "system" if i == wrong else "user", "content": "x"} for i in range(6)]
    with pytest.raises(InvalidRequest) as refused:
        template.render(messages, add_generation_prompt=True)
    assert refused.value.param == f"messages[{wrong}]"


async def test_tpl_4_continue_final_message(client: Any, tiny_tokenizer: Any) -> None:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "2+2?"},
        {"role": "assistant", "content": "The answer is"},
    ]
    expected = "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\nThe answer is"
    for fields in ({"add_generation_prompt": False}, {}):
        body = {"model": "tiny", "messages": messages, "continue_final_message": True, **fields}
        assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
        assert tiny_tokenizer.decode(client.replica.submits[-1].prompt_token_ids, skip_special_tokens=False) == expected
    parts = [{"type": "text", "text": "The answer"}, {"type": "text", "text": "is"}]
    body = {
        "model": "tiny",
        "messages": [messages[0], {"role": "assistant", "content": parts}],
        "continue_final_message": True,
    }
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200


async def test_without_generation_prompt(client: Any, tiny_tokenizer: Any) -> None:
    body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "add_generation_prompt": False}
    assert (await client.post("/v1/chat/completions", json=body)).status_code == 200
    text = tiny_tokenizer.decode(client.replica.submits[-1].prompt_token_ids, skip_special_tokens=False)
    assert text == "<|im_start|>user\nx<|im_end|>\n"


async def test_tool_calls_in_the_history_need_a_template_that_shows_them(client: Any, error_ok: Any) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "y", "tool_call_id": "1"},
        {"role": "system", "content": "z"},
    ]
    answer = await client.post("/v1/chat/completions", json={"model": "tiny", "messages": messages})
    await error_ok(client, answer, 400, "messages[1].tool_calls")
    shows = ChatTemplate(
        "{% for m in messages %}{{ m.tool_calls | tojson if m.tool_calls else m.content }}{% endfor %}", SPECIAL
    )
    assert shows.renders_tool_calls
    assert '"name": "f"' in shows.render(messages, add_generation_prompt=False)


async def test_templates_run_as_their_authors_expect() -> None:
    source = (
        "{{ bos_token }}{%- for m in messages %}\n"
        "    {%- if loop.index0 == 1 %}{% break %}{% endif %}\n"
        "{% generation %}{{ m['content'] | trim }}{% endgeneration %}{% endfor %}\n"
        "{{ strftime_now('%Y') | length }}{{ {'a': '<é>'} | tojson }}"
    )
    text = ChatTemplate(source, SPECIAL).render([{"role": "user", "content": " x "}] * 3, add_generation_prompt=False)
    assert text == '<s>x4{"a": "<é>"}'


async def test_templates_are_sandboxed() -> None:
    for source in ("{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ messages.__class__.__bases__[0] }}"):
        with pytest.raises(InvalidRequest):
            ChatTemplate(source, SPECIAL).render([{"role": "user", "content": "x"}], add_generation_prompt=False)


async def test_a_template_that_is_none_is_refused_with_its_line() -> None:
    with pytest.raises(ModelError, match="line 2"):
        ChatTemplate("fine\n{% if %}", SPECIAL)


async def test_templates_render_as_transformers_renders_them(smol_tokenizer: Any) -> None:
    """The default model's own template, and two that use more of the language."""
    from transformers.utils.chat_template_utils import render_jinja_template

    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\n <b>&"},
        {"role": "assistant", "content": "é"},
        {"role": "user", "content": "again"},
    ]
    smol = (
        "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\n"
        "You are<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] "
        "+ '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
    )
    spaced = (
        "{%- set ns = namespace(n=0) -%}\n{%- for m in messages -%}\n  {%- set ns.n = ns.n + 1 %}\n"
        "    {{ m | tojson }} {{ ns.n }}\n{%- endfor %}\n{% if add_generation_prompt %}\nGO\n{% endif %}"
    )
    for source in (smol, spaced):
        for opens in (True, False):
            ours = ChatTemplate(source, SPECIAL).render(messages, add_generation_prompt=opens)
            theirs, _ = render_jinja_template([messages], chat_template=source, add_generation_prompt=opens)
            assert ours == theirs[0]
