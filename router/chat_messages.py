"""Chat messages as a template may see them. Every error names the message by its index."""

from __future__ import annotations

from typing import Any

from contracts.errors import InvalidRequest
from router.client_text import clip

Message = dict[str, Any]
ROLES = ("system", "developer", "user", "assistant", "tool")
_ALLOWED = {
    "system": {"role", "content", "name"},
    "developer": {"role", "content", "name"},
    "user": {"role", "content", "name"},
    "assistant": {"role", "content", "name", "tool_calls", "refusal", "reasoning_content"},
    "tool": {"role", "content", "name", "tool_call_id"},
}


def check_messages(messages: list[dict[str, Any]], *, max_messages: int, renders_tool_calls: bool) -> list[Message]:
    """The messages with their content as one string (None only for an assistant's). Raises `InvalidRequest`.

    `renders_tool_calls`: whether the model's chat template shows an assistant's tool calls to the model. Where it
    does not they are refused, not dropped.
    """
    if not messages:
        raise InvalidRequest("messages: expected at least one message", param="messages")
    if len(messages) > max_messages:
        raise InvalidRequest(f"messages: {len(messages)} messages, at most {max_messages}", param="messages")
    return [_check_message(message, f"messages[{i}]", renders_tool_calls) for i, message in enumerate(messages)]


def _check_message(message: dict[str, Any], where: str, renders_tool_calls: bool) -> Message:
    role = message.get("role")
    if role not in ROLES:
        what = "missing" if role is None else f"unknown role {clip(role)!r}"
        raise InvalidRequest(f"{where}.role: {what}; expected one of {', '.join(ROLES)}", param=f"{where}.role")
    present = {name: value for name, value in message.items() if value is not None}
    for name in present:
        if name not in _ALLOWED[role]:
            field = f"{where}.{clip(name)}"
            raise InvalidRequest(f"{field}: not supported in a message of role {role}", param=field)
    for name in ("name", "tool_call_id", "refusal", "reasoning_content"):
        if name in present and not isinstance(present[name], str):
            raise InvalidRequest(f"{where}.{name}: expected a string", param=f"{where}.{name}")
    if "tool_calls" in present:
        if not renders_tool_calls:
            reason = "the chat template of this model does not render tool calls"
            raise InvalidRequest(f"{where}.tool_calls: {reason}", param=f"{where}.tool_calls")
        _check_tool_calls(present["tool_calls"], f"{where}.tool_calls")
    present["content"] = _content(message.get("content"), where, role)
    return present


def _content(content: Any, where: str, role: str) -> str | None:
    """Text parts are joined with a newline, as vLLM does for templates that expect a string."""
    if isinstance(content, str):
        return content
    if content is None:
        if role == "assistant":
            return None
        raise InvalidRequest(f"{where}.content: required for role {role}", param=f"{where}.content")
    if not isinstance(content, list):
        raise InvalidRequest(f"{where}.content: expected a string or a list of text parts", param=f"{where}.content")
    if not content:
        raise InvalidRequest(f"{where}.content: the list of parts is empty", param=f"{where}.content")
    return "\n".join(_text_part(part, f"{where}.content[{i}]") for i, part in enumerate(content))


def _text_part(part: Any, where: str) -> str:
    if not isinstance(part, dict):
        raise InvalidRequest(f"{where}: expected an object", param=where)
    if part.get("type") != "text":
        raise InvalidRequest(
            f"{where}.type: only text parts are supported, not {clip(part.get('type'))!r}", param=where
        )
    if not isinstance(part.get("text"), str) or part.keys() - {"type", "text"}:
        raise InvalidRequest(f"{where}: expected exactly `type` and a string `text`", param=where)
    return str(part["text"])


def _check_tool_calls(calls: Any, where: str) -> None:
    """The shape that templates rely on: a list of functions with a name and arguments."""
    if not isinstance(calls, list):
        raise InvalidRequest(f"{where}: expected a list", param=where)
    for i, call in enumerate(calls):
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InvalidRequest(f"{where}[{i}].function.name: expected a string", param=f"{where}[{i}]")
