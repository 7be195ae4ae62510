"""The bodies of the two generating endpoints: fields, types and ranges. What is not named here is refused by name."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

Int64 = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Positive = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Penalty = Annotated[float, Meta(ge=-2, le=2)]


class StreamOptions(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`include_usage`: one last chunk with usage. `continuous_usage_stats`: usage so far on every chunk."""

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Extension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What OpenAI's API has no words for. The values are checked by hand, so that an error shows little of them."""

    layout: str | None = None
    on_unavailable: str | None = None


class _GenerationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What both endpoints take. None is the same as absent, as OpenAI's clients send it."""

    model: str
    max_tokens: Positive | None = None
    min_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Annotated[float, Meta(gt=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=2**31 - 1)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    n: Positive | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[Count] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    seed: Int64 | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None
    ignore_eos: bool | None = None
    priority: Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)] | None = None
    user: str | None = None
    metadata: dict[str, str] | None = None
    safety_identifier: str | None = None
    prompt_cache_key: str | None = None
    phaseserve: Extension | None = None


class CompletionBody(_GenerationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/completions. `prompt` is checked by hand: text, texts, token ids, or lists of token ids."""

    prompt: Any
    logprobs: Count | None = None
    echo: bool | None = None
    best_of: Positive | None = None


class ChatBody(_GenerationBody, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """POST /v1/chat/completions. `messages` are checked by hand, so that an error names the message."""

    messages: list[dict[str, Any]]
    max_completion_tokens: Positive | None = None
    logprobs: bool | None = None
    top_logprobs: Count | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None


HARMLESS: dict[str, tuple[Any, ...]] = {
    "tools": ([],),
    "tool_choice": ("none",),
    "functions": ([],),
    "function_call": ("none",),
    "response_format": ({"type": "text"},),
    "modalities": (["text"],),
    "store": (False,),
    "service_tier": ("auto", "default"),
    "suffix": ("",),
    "use_beam_search": (False,),
    "length_penalty": (1,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "include_stop_str_in_output": (False,),
    "chat_template_kwargs": ({},),
}
"""Parameters that this server does not support, with the values that ask for nothing and are therefore accepted."""
