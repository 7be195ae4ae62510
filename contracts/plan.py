"""The router's decision for one request, with its prediction and its reason, and what came of it."""

from __future__ import annotations

from enum import StrEnum

import msgspec

from contracts.handoff import HandoffReport
from contracts.phase import Layout


class Prediction(msgspec.Struct, frozen=True, kw_only=True):
    """What the router expects, in seconds, from the moment of the decision (`ttft_s`: from arrival).

    `transfer_s` is the KV transfer as a whole, `exposed_s` the part that is not hidden behind the prefill;
    `link_bytes_per_s` is the rate it was predicted with (0: no transfer).
    """

    ttft_s: float
    switch_wait_s: float
    tpot_s: float
    harm_s: float = 0.0
    transfer_s: float = 0.0
    exposed_s: float = 0.0
    link_bytes_per_s: float = 0.0


class FallbackKind(StrEnum):
    """Why a layout that was asked for was not had, for counting; `Plan.fallback` says it in words."""

    HANDOFF_FAILED = "handoff_failed"
    HANDOFF_WORSE = "handoff_worse"
    NO_LINK = "no_link"
    NO_REPLICA = "no_replica"


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """Where one request runs. `reason` is one sentence with the numbers that decided.

    `replica_id` is where it decodes; `prefill_replica_id` is set when it is computed elsewhere (disaggregated).
    `fallback` says why the layout that was asked for could not be had, None when nothing was given up, and
    `fallback_kind` which of the few reasons that is.
    `macro_instance` is the one whose turn it was (phased). `cached_tokens` of the prompt are expected in its cache.
    `handoff_expected_s` is what `DecodeLeg.expected_s` wants: queue, prefill and exposed transfer, from now on.
    """

    layout: Layout
    replica_id: str
    prediction: Prediction
    reason: str
    prefill_replica_id: str | None = None
    fallback: str | None = None
    fallback_kind: FallbackKind | None = None
    handoff_expected_s: float = 0.0
    macro_instance: str | None = None
    cached_tokens: int = 0


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What really happened to one request, in seconds. `tpot_s` is None below two output tokens."""

    ttft_s: float | None
    switch_wait_s: float | None
    tpot_s: float | None
    output_tokens: int
    finish: str
    handoff: HandoffReport | None = None


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `/decisions`: the plan, and the outcome once there is one."""

    request_id: str
    at_s: float
    prompt_tokens: int
    pending_s: float
    plan: Plan | None
    refusal: str | None = None
    outcome: Outcome | None = None


class FleetDecision(msgspec.Struct, frozen=True, kw_only=True):
    """One decision about the fleet itself: a role, a macro instance split, merged or left, a size proposed.

    `reason` is one sentence with the numbers that decided, `numbers` those numbers by name (unit in the name).
    """

    at_s: float
    kind: str
    reason: str
    replica_id: str | None = None
    numbers: dict[str, float] = {}
