"""Prometheus metrics of one router. Label values come from closed sets only: configured names and our own enums.

A client cannot add a series: unknown models are refused before they are counted by name.
"""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from contracts.plan import Outcome
from router.fleet_metrics import FleetMetrics
from router.flight import Flight
from router.handoff_metrics import HandoffMetrics
from router.outcome import tpot_after_switch_s, tpot_s
from router.token_metrics import TokenMetrics
from scheduling.cluster_snapshot import ClusterSnapshot

_TTFT_S = (0.05, 0.1, 0.25, 0.5, 1, 2, 3, 4, 6, 8, 12, 20, 40, 80)
_TOKEN_S = (0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.35, 0.5, 1, 2)
_TOTAL_S = (0.1, 0.25, 0.5, 1, 2, 5, 10, 20, 40, 80, 160, 320, 640)
_ERROR_S = (-8, -4, -2, -1, -0.5, -0.2, -0.1, 0, 0.1, 0.2, 0.5, 1, 2, 4, 8)

OUTCOMES = ("stop", "length", "cancelled", "bad_request", "too_large", "overloaded", "unavailable", "deadline", "error")
"""Closed set of request outcomes."""

_BY_STATUS = {
    400: "bad_request",
    404: "bad_request",
    408: "bad_request",
    413: "too_large",
    415: "bad_request",
    429: "overloaded",
    499: "cancelled",
    503: "unavailable",
    504: "deadline",
}


def outcome_of_status(status: int) -> str:
    """The outcome label of a request that ended with an error."""
    return _BY_STATUS.get(status, "error")


class RouterMetrics:
    """Its own registry, so that two routers in one process (tests) do not meet."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.tokens = TokenMetrics()
        self.registry.register(self.tokens)
        self._fleet = FleetMetrics()
        self.registry.register(self._fleet)
        self.handoffs = HandoffMetrics(self.registry)
        self._counters()
        self._histograms()
        self._gauges()

    def _counters(self) -> None:
        reg = self.registry
        self.requests = Counter(
            "phaseserve_requests", "HTTP requests by outcome.", ("endpoint", "outcome"), registry=reg
        )
        self.prompt_tokens = Counter("phaseserve_prompt_tokens", "Prompt tokens of answered requests.", registry=reg)
        self.cached_tokens = Counter("phaseserve_cached_tokens", "Prompt tokens from a prefix cache.", registry=reg)
        self.preemptions = Counter("phaseserve_preemptions", "Preemptions of answered sequences.", registry=reg)
        self.malformed_messages = Counter(
            "phaseserve_malformed_messages", "Messages of replicas that did not decode.", registry=reg
        )
        self.proposals = Counter(
            "phaseserve_fleet_proposals", "Proposals to add or remove replicas.", ("direction",), registry=reg
        )

    def _histograms(self) -> None:
        reg = self.registry
        self.ttft = Histogram("phaseserve_ttft_seconds", "Arrival to first token.", buckets=_TTFT_S, registry=reg)
        self.tpot = Histogram(
            "phaseserve_tpot_seconds",
            "Per output token after the first, switch wait included.",
            buckets=_TOKEN_S,
            registry=reg,
        )
        self.tpot_after_switch = Histogram(
            "phaseserve_tpot_after_switch_seconds",
            "Per output token after the first, from the first decode step on (EcoServe's clock).",
            buckets=_TOKEN_S,
            registry=reg,
        )
        self.switch_wait = Histogram(
            "phaseserve_switch_wait_seconds", "First token to first decode step.", buckets=_TTFT_S, registry=reg
        )
        self.e2e = Histogram("phaseserve_e2e_seconds", "Arrival to last token.", buckets=_TOTAL_S, registry=reg)
        self.ttft_error = Histogram(
            "phaseserve_ttft_prediction_error_seconds", "TTFT minus its prediction.", buckets=_ERROR_S, registry=reg
        )

    def _gauges(self) -> None:
        reg = self.registry
        self.in_flight = Gauge("phaseserve_requests_in_flight", "Client requests not ended.", registry=reg)
        self.pending = Gauge("phaseserve_pending_requests", "Requests that no replica could take yet.", registry=reg)
        self.pending_s = Gauge("phaseserve_pending_prefill_seconds", "Predicted prefill time pending.", registry=reg)
        self._per_replica = {
            name: Gauge(f"phaseserve_replica_{name}", text, ("replica",), registry=reg)
            for name, text in {
                "waiting": "Sequences accepted, not prefilled.",
                "running": "Sequences decoding.",
                "backlog_seconds": "Predicted prefill time accepted or on its way.",
                "free_blocks": "Free KV blocks.",
                "decode_step_seconds": "Duration of a decode step.",
                "slack_min_seconds": "Slack of the tightest running stream.",
                "view_age_seconds": "Age of the last view.",
                "steps_done": "Steps since the replica's start.",
                "overdraft_seconds": "Time that prefill took beyond the slack of running streams, since the start.",
                "window_cuts": "Steps that streams got in the middle of a prefill window, since the start.",
            }.items()
        }
        self._shown: set[str] = set()

    def observe_first_token(self, flight: Flight, now: float) -> None:
        """The first token of any of the flight's sequences arrived."""
        ttft_s = now - flight.arrived_s
        self.ttft.observe(ttft_s)
        if flight.plan is not None:
            self.ttft_error.observe(ttft_s - flight.plan.prediction.ttft_s)

    def observe_outcome(self, flight: Flight, outcome: Outcome) -> None:
        """A flight ended well."""
        self.handoffs.answered(flight, outcome)
        self.prompt_tokens.inc(len(flight.token_ids))
        self.e2e.observe(max(track.last_s for track in flight.tracks) - flight.arrived_s)
        for track in flight.tracks:
            if (total := tpot_s(track)) is not None:
                self.tpot.observe(total)
            if (after := tpot_after_switch_s(track)) is not None:
                self.tpot_after_switch.observe(after)
            if track.usage is not None:
                self.preemptions.inc(track.usage.preemptions)
                if track.usage.switch_wait_s is not None:
                    self.switch_wait.observe(track.usage.switch_wait_s)
        if (usage := flight.tracks[0].usage) is not None:
            self.cached_tokens.inc(min(usage.cached_tokens, len(flight.token_ids)))

    def observe_fleet(self, snapshot: ClusterSnapshot, in_flight: int) -> None:
        """Gauges, at each scrape. Series of replicas that left are removed."""
        self._fleet.show(snapshot)
        self.in_flight.set(in_flight)
        self.pending.set(snapshot.pending)
        self.pending_s.set(snapshot.pending_prefill_s)
        here = {replica.replica_id for replica in snapshot.replicas}
        for replica in snapshot.replicas:
            view = replica.view
            for name, value in (
                ("waiting", view.waiting),
                ("running", view.running),
                ("backlog_seconds", replica.backlog_s),
                ("free_blocks", view.free_blocks),
                ("decode_step_seconds", view.decode_step_s),
                ("slack_min_seconds", view.slack_quantiles_s[0] if view.slack_quantiles_s else 0.0),
                ("view_age_seconds", replica.view_age_s),
                ("steps_done", view.steps_done),
                ("overdraft_seconds", view.overdraft_s),
                ("window_cuts", view.window_cuts),
            ):
                self._per_replica[name].labels(replica.replica_id).set(value)
        for gone in self._shown - here:
            for gauge in self._per_replica.values():
                gauge.remove(gone)
        self._shown = here

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self.registry)
