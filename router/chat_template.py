"""Rendering a model's own chat template, in the environment that its author wrote it for.

Templates come with model files and are untrusted: they run in jinja2's immutable sandbox. The globals and filters are
those of `transformers.PreTrainedTokenizer.apply_chat_template`.
"""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
import jinja2.ext
from jinja2.sandbox import ImmutableSandboxedEnvironment

from contracts.errors import InvalidRequest, ModelError
from engine.checkpoint.model_files import SpecialTokens
from router.chat_messages import Message
from router.client_text import clip

_SENTINEL = "\ue000phaseserve-continues-here\ue000"


class _GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}` marks what the assistant said, for training; here its body is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012  (the name and type that jinja2 reads)

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _raise_exception(message: str) -> NoReturn:
    raise jinja2.TemplateError(message)


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    """Unlike jinja2's own filter this one does not escape HTML characters."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _strftime_now(layout: str) -> str:
    return datetime.now().strftime(layout)


class ChatTemplate:
    """One model's template, compiled. Raises `ModelError` when it is not valid jinja2."""

    def __init__(self, source: str, special: SpecialTokens) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, jinja2.ext.loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals.update(raise_exception=_raise_exception, strftime_now=_strftime_now)
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateSyntaxError as error:
            raise ModelError(f"chat template, line {error.lineno}: {error.message}") from error
        tokens = {"bos": special.bos, "eos": special.eos, "unk": special.unk, "pad": special.pad}
        self._special = {f"{name}_token": token for name, token in tokens.items() if token is not None}
        self.renders_tool_calls = "tool_calls" in source

    def render(self, messages: list[Message], *, add_generation_prompt: bool) -> str:
        """The prompt as text. Raises `InvalidRequest` naming the first message that the template refuses."""
        try:
            return self._render(messages, add_generation_prompt)
        except _TEMPLATE_ERRORS as error:
            index = self._first_refused(messages)
            where = f"messages[{index}]"
            raise InvalidRequest(f"{where}: refused by the chat template: {clip(str(error))}", param=where) from error

    def render_continued(self, messages: list[Message]) -> str:
        """The prompt as text, ending where the last message's content ends, so that the model goes on with it."""
        last = messages[-1]
        where = f"messages[{len(messages) - 1}]"
        if last["role"] != "assistant" or not last["content"]:
            reason = "continue_final_message needs a last message of role assistant with content"
            raise InvalidRequest(f"{where}: {reason}", param=where)
        marked = [*messages[:-1], {**last, "content": last["content"] + _SENTINEL}]
        text, sentinel, _ = self.render(marked, add_generation_prompt=False).rpartition(_SENTINEL)
        if not sentinel:
            raise InvalidRequest(f"{where}: the chat template does not show this content", param=where)
        return text

    def _render(self, messages: list[Message], add_generation_prompt: bool) -> str:
        return self._template.render(
            messages=messages,
            tools=None,
            documents=None,
            add_generation_prompt=add_generation_prompt,
            **self._special,
        )

    def _first_refused(self, messages: list[Message]) -> int:
        """The last message of the shortest prefix that does not render, by bisection (a refused prefix stays so)."""
        low, high = 0, len(messages) - 1
        while low < high:
            middle = (low + high) // 2
            if self._renders(messages[: middle + 1]):
                low = middle + 1
            else:
                high = middle
        return low

    def _renders(self, messages: list[Message]) -> bool:
        try:
            self._render(messages, False)
        except _TEMPLATE_ERRORS:
            return False
        return True


# A template is a program that others wrote: these are what jinja2 expressions raise on values they did not expect.
_TEMPLATE_ERRORS = (jinja2.TemplateError, TypeError, ValueError, LookupError, ArithmeticError, AttributeError)
