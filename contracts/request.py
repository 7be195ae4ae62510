"""One request as the replicas see it: tokens in, sampling rules, targets. Text never leaves the router."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from contracts.handoff import DecodeLeg, PrefillLeg


class Slo(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Latency targets of a request, in seconds."""

    ttft_s: float = 4.0
    tpot_s: float = 0.25


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How output tokens are chosen. Values are validated by the router before a request is built.

    `temperature == 0` is greedy. `top_k == 0`, `top_p == 1`, `min_p == 0` switch the filter off.
    Below `min_tokens` eos and stop ids are banned, also with `ignore_eos`.
    `logprobs`: None for none, else how many alternatives to report beside the chosen token (0 is allowed).
    `seed`: None lets the replica's own seed and the request id decide; the same seed gives the same tokens whatever
    else is in the batch. Output token number i of a sequence uses the i-th value of its own stream.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    max_tokens: int = 16
    min_tokens: int = 0
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False


class Request(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One sequence to generate. A client request with `n` choices becomes `n` of these.

    `waited_s` is how long the request had already waited when it was sent (clocks of two machines are never
    compared). `submit_index` counts submissions of one router to one replica, from 1.

    `output_token_ids` were generated elsewhere already (the replica that did is gone, or handed over): generation goes
    on after them, and `sampling.max_tokens` counts them too. `leg` is set when another replica does the other phase.
    """

    request_id: str
    prompt_token_ids: tuple[int, ...]
    sampling: SamplingParams
    slo: Slo = Slo()
    priority: int = 0
    waited_s: float = 0.0
    submit_index: int = 0
    output_token_ids: tuple[int, ...] = ()
    leg: PrefillLeg | DecodeLeg | None = None


class FinishReason(StrEnum):
    """Why a sequence ended. `HANDED_OVER`: on this replica only. From a sender: the receiver of its KV goes on with it;
    from a receiver: the sender's first token ended it, and the sender says so."""

    STOP = "stop"
    LENGTH = "length"
    CANCELLED = "cancelled"
    ERROR = "error"
    HANDED_OVER = "handed_over"
