"""What a Submit must be before the core sees it: one request that a router let through must not fail a whole batch."""

from __future__ import annotations

from collections.abc import Container

from contracts.errors import InvalidRequest
from contracts.request import Request


def wrong_request(requests: tuple[Request, ...], in_use: Container[str], vocab_size: int) -> InvalidRequest | None:
    """Why the sequences of one client request cannot be accepted, or None. `in_use`: the router's live ids."""
    ids = {request.request_id for request in requests}
    if len(ids) < len(requests) or any(request_id in in_use for request_id in ids):
        return InvalidRequest("a request id is in use already", param="request_id")
    checked: tuple[int, ...] | None = None
    for request in requests:
        prompt = request.prompt_token_ids
        if prompt != checked and prompt and not (min(prompt) >= 0 and max(prompt) < vocab_size):
            return InvalidRequest(f"a prompt token lies outside the vocabulary of {vocab_size}", param="prompt")
        checked = prompt
        if any(not 0 <= token_id < vocab_size for token_id in request.sampling.logit_bias):
            return InvalidRequest(f"a biased token lies outside the vocabulary of {vocab_size}", param="logit_bias")
    return None
