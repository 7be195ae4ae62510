"""The sampling fields of a body as `SamplingParams`, with the checks that involve limits or two fields at once."""

from __future__ import annotations

from contracts.errors import InvalidRequest
from contracts.request import SamplingParams
from router.client_text import clip
from router.config import RequestLimits
from router.openai_schema import ChatBody, CompletionBody

Body = ChatBody | CompletionBody


def sampling_params(fields: Body, limits: RequestLimits, vocab_size: int) -> SamplingParams:
    """Everything but the token bound, which depends on the prompt. Raises `InvalidRequest` naming the field."""
    if fields.n is not None and fields.n > limits.max_n:
        raise InvalidRequest(f"n: {fields.n} choices, at most {limits.max_n}", param="n")
    top = _logprobs(fields, limits)
    echoes = isinstance(fields, CompletionBody) and bool(fields.echo)
    return SamplingParams(
        temperature=_or(fields.temperature, 1.0),
        top_p=_or(fields.top_p, 1.0),
        top_k=max(0, fields.top_k or 0),
        min_p=_or(fields.min_p, 0.0),
        repetition_penalty=_or(fields.repetition_penalty, 1.0),
        presence_penalty=_or(fields.presence_penalty, 0.0),
        frequency_penalty=_or(fields.frequency_penalty, 0.0),
        logit_bias=_logit_bias(fields.logit_bias, limits, vocab_size),
        seed=fields.seed,
        logprobs=top,
        prompt_logprobs=top if echoes else None,
        min_tokens=fields.min_tokens or 0,
        stop_token_ids=_stop_token_ids(fields.stop_token_ids or [], limits, vocab_size),
        ignore_eos=bool(fields.ignore_eos),
    )


def stop_strings(stop: str | list[str] | None, limits: RequestLimits) -> tuple[str, ...]:
    """Distinct stop strings. Raises `InvalidRequest`."""
    stops = [stop] if isinstance(stop, str) else stop or []
    if len(stops) > limits.max_stop:
        raise InvalidRequest(f"stop: {len(stops)} strings, at most {limits.max_stop}", param="stop")
    for text in stops:
        if not 1 <= len(text) <= limits.max_stop_chars:
            raise InvalidRequest(f"stop: each string must have 1 to {limits.max_stop_chars} characters", param="stop")
    return tuple(dict.fromkeys(stops))


def _stop_token_ids(ids: list[int], limits: RequestLimits, vocab_size: int) -> tuple[int, ...]:
    if len(ids) > limits.max_stop_token_ids:
        reason = f"{len(ids)} token ids, at most {limits.max_stop_token_ids}"
        raise InvalidRequest(f"stop_token_ids: {reason}", param="stop_token_ids")
    for token_id in ids:
        if token_id >= vocab_size:
            reason = f"token id {token_id} is not in 0..{vocab_size - 1}"
            raise InvalidRequest(f"stop_token_ids: {reason}", param="stop_token_ids")
    return tuple(dict.fromkeys(ids))


def _logprobs_of_chat(fields: ChatBody, limits: RequestLimits) -> int | None:
    """How many alternatives a chat asks for: `logprobs` switches them on, `top_logprobs` counts them."""
    if fields.top_logprobs is not None and not fields.logprobs:
        raise InvalidRequest("top_logprobs: needs logprobs true", param="top_logprobs")
    if fields.top_logprobs is not None and fields.top_logprobs > limits.max_logprobs:
        raise InvalidRequest(f"top_logprobs: at most {limits.max_logprobs}", param="top_logprobs")
    return (fields.top_logprobs or 0) if fields.logprobs else None


def _logprobs_of_completion(fields: CompletionBody, limits: RequestLimits) -> int | None:
    """How many alternatives a completion asks for; 0 is the chosen token only."""
    if fields.logprobs is not None and fields.logprobs > limits.max_logprobs:
        raise InvalidRequest(f"logprobs: at most {limits.max_logprobs}", param="logprobs")
    return fields.logprobs


def _logprobs(fields: Body, limits: RequestLimits) -> int | None:
    if isinstance(fields, ChatBody):
        return _logprobs_of_chat(fields, limits)
    return _logprobs_of_completion(fields, limits)


def _logit_bias(bias: dict[str, float] | None, limits: RequestLimits, vocab_size: int) -> dict[int, float]:
    if bias is None:
        return {}
    if len(bias) > limits.max_logit_bias:
        raise InvalidRequest(f"logit_bias: {len(bias)} entries, at most {limits.max_logit_bias}", param="logit_bias")
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) < 10 and int(key) < vocab_size):
            reason = f"{clip(key)!r} is not a token id in 0..{vocab_size - 1}"
            raise InvalidRequest(f"logit_bias: {reason}", param="logit_bias")
    return {int(key): value for key, value in bias.items()}


def _or(value: float | None, default: float) -> float:
    return default if value is None else value
