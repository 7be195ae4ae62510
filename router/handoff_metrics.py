"""What is counted about layouts and hand-offs. Label values come from closed sets; see `RouterMetrics`."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from contracts.phase import Layout
from contracts.plan import FallbackKind, Outcome, Plan
from router.flight import Flight

_TRANSFER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class HandoffEnd(StrEnum):
    """How one sequence's hand-off ended. `NOT_NEEDED`: its first token was its last; `REFUSED`: there was no ticket yet
    when its placement came to nothing; `CANCELLED`: nobody waits. `UNREPORTED`: the decode replica ended the sequence
    without saying that it took KV in, so perhaps it computed the prompt again, which no text would show."""

    COMPLETED = "completed"
    UNREPORTED = "unreported"
    NOT_NEEDED = "not_needed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class HandoffMetrics:
    """Registered with the rest of the router's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        reg = registry
        self._layouts = Counter(
            "phaseserve_layout_requests",
            "Answered requests by layout.",
            ("layout",),
            registry=reg,
        )
        self._fallbacks = Counter(
            "phaseserve_fallbacks", "Placements in another layout than was asked for.", ("reason",), registry=reg
        )
        self._handoffs = Counter("phaseserve_handoffs", "Hand-offs of sequences, by end.", ("outcome",), registry=reg)
        self._continuations = Counter(
            "phaseserve_continuations", "Requests that went on elsewhere after their first token.", registry=reg
        )
        self._bytes = Counter("phaseserve_handoff_bytes", "KV bytes handed over to answer requests.", registry=reg)
        self._transfer = Histogram(
            "phaseserve_handoff_transfer_seconds", "Duration of a KV transfer.", buckets=_TRANSFER_S, registry=reg
        )
        self._exposed = Histogram(
            "phaseserve_handoff_exposed_seconds",
            "The part of a KV transfer that no compute hid.",
            buckets=_TRANSFER_S,
            registry=reg,
        )
        for layout in Layout:
            self._layouts.labels(layout.value)
        for reason in FallbackKind:
            self._fallbacks.labels(reason.value)
        for outcome in HandoffEnd:
            self._handoffs.labels(outcome.value)

    def placed(self, flight: Flight, plan: Plan) -> None:
        """A placement begins."""
        if plan.fallback_kind is not None:
            self._fallbacks.labels(plan.fallback_kind.value).inc()
        if flight.first_s is not None:
            self._continuations.inc()

    def ended(self, how: HandoffEnd) -> None:
        """The placement of one sequence that was to be handed over has ended."""
        self._handoffs.labels(how.value).inc()

    def answered(self, flight: Flight, outcome: Outcome) -> None:
        """A flight ended well."""
        if flight.plan is not None:
            self._layouts.labels(flight.plan.layout.value).inc()
        if outcome.handoff is None:
            return
        self._bytes.inc(outcome.handoff.num_bytes)
        for track in flight.tracks:
            if track.usage is not None and (report := track.usage.handoff) is not None:
                self._transfer.observe(report.transfer_s)
                self._exposed.observe(report.exposed_s)
