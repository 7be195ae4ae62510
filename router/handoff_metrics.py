"""What is counted about layouts and hand-offs. Label values come from closed sets; see `RouterMetrics`."""

from __future__ import annotations

from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter, Histogram

from contracts.phase import Layout
from contracts.plan import Outcome, Plan
from router.flight import Flight

_TRANSFER_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Handoff(StrEnum):
    """How one sequence's hand-off ended. `NOT_NEEDED`: its first token was its last; `REFUSED`: there was no ticket yet
    when its placement came to nothing; `CANCELLED`: nobody waits. `UNREPORTED`: the decode replica ended the sequence
    without saying that it took KV in, so perhaps it computed the prompt again, which no text would show."""

    COMPLETED = "completed"
    UNREPORTED = "unreported"
    NOT_NEEDED = "not_needed"
    REFUSED = "refused"
    FAILED = "failed"
    CANCELLED = "cancelled"


class Fallback(StrEnum):
    """Why a layout that was asked for was not had: the first of these one of whose words is in the plan's sentence."""

    HANDOFF_FAILED = "handoff_failed"
    HANDOFF_WORSE = "handoff_worse"
    NO_LINK = "no_link"
    NO_REPLICA = "no_replica"
    OTHER = "other"


_WORDS = (
    (Fallback.HANDOFF_FAILED, ("hand-off failed",)),
    (Fallback.HANDOFF_WORSE, ("hand-off would be worse",)),
    (Fallback.NO_LINK, ("link", "connected", "fingerprint")),
    (Fallback.NO_REPLICA, ("replica", "draining", "view", "step")),
)


def fallback_kind(sentence: str) -> Fallback:
    """The closed set's member for a plan's own words."""
    lower = sentence.lower()
    return next((kind for kind, words in _WORDS if any(word in lower for word in words)), Fallback.OTHER)


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
        for reason in Fallback:
            self._fallbacks.labels(reason.value)
        for outcome in Handoff:
            self._handoffs.labels(outcome.value)

    def placed(self, flight: Flight, plan: Plan) -> None:
        """A placement begins."""
        if plan.fallback is not None:
            self._fallbacks.labels(fallback_kind(plan.fallback).value).inc()
        if flight.first_s is not None:
            self._continuations.inc()

    def ended(self, how: Handoff) -> None:
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
