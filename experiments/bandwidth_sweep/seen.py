"""What was measured, as values: one request, and one point of the sweep."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from contracts.plan import Decision
from contracts.views import StepCost


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One request. Times in seconds by the router's clock, None where it did not come so far; `error` says why it was
    not answered. `tpot_s` runs from the first token, switch wait included. Of a hand-off: `exposed_s` of `transfer_s`
    came after the prefill, the router had planned with `planned_exposed_s` of `planned_transfer_s`."""

    layout: str | None = None
    error: str | None = None
    fallback: bool = False
    output_tokens: int = 0
    ttft_s: float | None = None
    switch_wait_s: float | None = None
    tpot_s: float | None = None
    kv_bytes: int = 0
    transfer_s: float | None = None
    exposed_s: float | None = None
    planned_transfer_s: float | None = None
    planned_exposed_s: float | None = None

    @property
    def ready_s(self) -> float | None:
        """TTFT by EcoServe's clock: until the first decode step."""
        return None if self.ttft_s is None or self.switch_wait_s is None else self.ttft_s + self.switch_wait_s

    @property
    def decode_tpot_s(self) -> float | None:
        """TPOT by EcoServe's clock: the switch wait left out."""
        if self.tpot_s is None or self.switch_wait_s is None or self.output_tokens < 2:
            return None
        return max(0.0, self.tpot_s - self.switch_wait_s / (self.output_tokens - 1))


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One mode at one rate. `wire_bytes` left the hosts meanwhile; `link_bytes_per_s` is what the fleet took its link
    for in the end (None: no pools); `cost` is the step cost that the replica which prefills has learnt."""

    mode: str
    mbit_per_s: float
    seen: tuple[Seen, ...]
    span_s: float
    wire_bytes: int
    link_bytes_per_s: float | None
    cost: StepCost


def seen_of(shown: Mapping[str, Any] | None, error: str | None) -> Seen:
    """From a line of `/decisions` (None: the router knows nothing of it) and what the client was told."""
    if shown is None:
        return Seen(error=error or "the router kept no decision")
    decision = msgspec.convert(shown, Decision, strict=False)
    plan, outcome = decision.plan, decision.outcome
    if outcome is None or error is not None:
        error = error or decision.refusal or "no outcome"
    layout = None if plan is None else plan.layout.value
    fallback = plan is not None and plan.fallback is not None
    if outcome is None or plan is None:
        return Seen(layout=layout, error=error, fallback=fallback)
    handoff = outcome.handoff
    return Seen(
        layout=layout,
        error=error,
        fallback=fallback,
        output_tokens=outcome.output_tokens,
        ttft_s=outcome.ttft_s,
        switch_wait_s=outcome.switch_wait_s,
        tpot_s=outcome.tpot_s,
        kv_bytes=0 if handoff is None else handoff.num_bytes,
        transfer_s=None if handoff is None else handoff.transfer_s,
        exposed_s=None if handoff is None else handoff.exposed_s,
        planned_transfer_s=None if handoff is None else plan.prediction.transfer_s,
        planned_exposed_s=None if handoff is None else plan.prediction.exposed_s,
    )
