"""The values that go back to a client, field for field as OpenAI documents them."""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.errors import ErrorInfo

UNSET = msgspec.UNSET
UnsetType = msgspec.UnsetType


class PromptTokensDetails(msgspec.Struct, frozen=True):
    """How many prompt tokens came from a prefix cache."""

    cached_tokens: int


class Usage(msgspec.Struct, frozen=True):
    """Tokens of the whole answer; each prompt counts once, whatever n is."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative of a chat token."""

    token: str
    logprob: float
    bytes: list[int] | None


class ChatLogprob(msgspec.Struct, frozen=True):
    """One chat token with its alternatives, best first."""

    token: str
    logprob: float
    bytes: list[int] | None
    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True):
    """Log probabilities of the tokens shown."""

    content: list[ChatLogprob]
    refusal: None = None


class TextLogprobs(msgspec.Struct, frozen=True):
    """Parallel arrays over the tokens shown. The first token of an echoed prompt has no log probability."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None]
    text_offset: list[int]


class Delta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds to a chat message."""

    role: str | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct, frozen=True):
    """One choice in a streamed chat chunk."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None


class ChatMessage(msgspec.Struct, frozen=True):
    """A whole chat message."""

    role: str
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True):
    """One choice of a whole chat answer."""

    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: str


class TextChoice(msgspec.Struct, frozen=True):
    """One choice of a completion, whole or in a chunk."""

    index: int
    text: str
    logprobs: TextLogprobs | None = None
    finish_reason: str | None = None


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """The envelope of answers and chunks. `usage` is left out unless set; None is written as null."""

    id: str
    object: str
    created: int
    model: str
    choices: list[Any]
    usage: Usage | UnsetType | None = UNSET


_ERROR_TYPES = {
    400: "invalid_request_error",
    404: "invalid_request_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
}


def error_body(info: ErrorInfo) -> dict[str, Any]:
    """OpenAI's error object."""
    kind = _ERROR_TYPES.get(info.status, "invalid_request_error" if info.status < 500 else "server_error")
    return {"error": {"message": info.message, "type": kind, "param": info.param, "code": info.code}}
