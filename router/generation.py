"""One validated HTTP request for tokens: everything that is decided about it before anything is dispatched."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from contracts.cluster_io import OnUnavailable
from contracts.phase import Layout
from contracts.request import SamplingParams


class Endpoint(StrEnum):
    """Where the request came in."""

    CHAT = "chat"
    COMPLETIONS = "completions"


class Prompt(msgspec.Struct, frozen=True):
    """Token ids, and the text they came from where it was given as text."""

    token_ids: tuple[int, ...]
    text: str | None = None


class Generation(msgspec.Struct, frozen=True, kw_only=True):
    """`prompts` times `n` choices; choice number `p * n + i` is the i-th of prompt p.

    `sampling.max_tokens` is the bound for every prompt. `stops` are stop strings; `logprobs` is the number of
    alternatives to report, None for no log probabilities at all. `layout` and `on_unavailable` are the client's
    wishes, None where it leaves them to the deployment. `user` is the one that the body names, `key` the one whose fair
    share the request is taken from.
    """

    endpoint: Endpoint
    id: str
    created: int
    model: str
    prompts: tuple[Prompt, ...]
    n: int
    sampling: SamplingParams
    max_tokens: tuple[int, ...]
    stops: tuple[str, ...] = ()
    logprobs: int | None = None
    echo: bool = False
    stream: bool = False
    include_usage: bool = False
    continuous_usage: bool = False
    priority: int = 0
    layout: Layout | None = None
    on_unavailable: OnUnavailable | None = None
    user: str = ""
    key: str = ""

    def goes_by(self, request_id: str) -> bool:
        """The id of the answer, or the client's own, with which that ends."""
        return request_id in (self.id, self.id.partition("-")[2])

    def sampling_of(self, prompt: int, i: int) -> SamplingParams:
        """The rules for choice `i` of `prompt`: its own token bound, and a seed of its own when one was given."""
        seed = self.sampling.seed
        if seed is not None and i > 0:
            seed = (seed + i * _SEED_STRIDE) % 2**63
        return msgspec.structs.replace(self.sampling, seed=seed, max_tokens=self.max_tokens[prompt])


_SEED_STRIDE = 0x9E3779B97F4A7C15 % 2**63
"""Odd and spread over all bits, so that seeds s, s + 1, ... with n choices each do not meet."""
