"""Replicas and links as metrics, made from their views at each scrape: what has left the fleet leaves no series."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contracts.handoff import LinkView
from contracts.views import ReplicaView
from scheduling.cluster_snapshot import ClusterSnapshot, FairnessSnapshot, PlannerSnapshot

_REPLICA_COUNTERS = {
    "prompt_tokens_computed": "Prompt tokens that this replica computed.",
    "output_tokens_computed": "Output tokens that this replica computed.",
    "handoffs_in": "Sequences whose KV arrived whole.",
    "handoffs_out": "Sequences whose KV was acknowledged by a peer.",
    "handoffs_failed": "Hand-offs that this replica saw fail.",
    "kv_bytes_in": "KV bytes received.",
    "kv_bytes_out": "KV bytes sent.",
    "checksum_errors": "Hand-offs whose KV arrived changed.",
}
_REPLICA_GAUGES = {
    "receiving": "Sequences that wait for their KV.",
    "sending": "Sequences whose KV is being sent.",
}
_LINK_GAUGES = {
    "bytes_per_second": "Measured bandwidth.",
    "spread": "Relative standard deviation of the bandwidth.",
    "latency_seconds": "Latency.",
    "age_seconds": "Age of the last measurement.",
    "bytes_in_flight": "Granted and not acknowledged.",
    "usable": "1 when KV can be sent.",
}
_FAIRNESS_GAUGES = {
    "num_keys": "Keys that are told apart now.",
    "jain_served": "Jain's index over keys of seconds served over weight, 1 when all are equal.",
    "jain_attained": "Jain's index over keys of the share of requests that met both targets.",
    "longest_wait_seconds": "Longest time from an arrival to its first token, or its end without one, since the start.",
}
_PLANNER_GAUGES = {
    "demand_per_second": "Sequences per second that are asked for, as the planner sees it.",
    "carries_per_second": "Sequences per second that the present roles sustain within the targets, as predicted.",
    "utilisation": "Demand over what the present roles sustain.",
}


class FleetMetrics(Collector):
    """`show` the newest snapshot, then collect."""

    def __init__(self) -> None:
        self._views: list[ReplicaView] = []
        self._planner = PlannerSnapshot()
        self._fairness = FairnessSnapshot()

    def show(self, snapshot: ClusterSnapshot) -> None:
        """What the next scrape tells."""
        self._views = [replica.view for replica in snapshot.replicas]
        self._planner = snapshot.planner
        self._fairness = snapshot.fairness

    def collect(self) -> Iterator[Metric]:
        """As prometheus_client asks for it."""
        for name, text in _REPLICA_COUNTERS.items():
            counter = CounterMetricFamily(f"phaseserve_replica_{name}", text, labels=["replica"])
            for view in self._views:
                counter.add_metric([view.replica_id], getattr(view, name))
            yield counter
        for name, text in _REPLICA_GAUGES.items():
            gauge = GaugeMetricFamily(f"phaseserve_replica_{name}", text, labels=["replica"])
            for view in self._views:
                gauge.add_metric([view.replica_id], getattr(view, name))
            yield gauge
        yield from self._links()
        if self._planner.enabled:
            yield from _planner(self._planner)
        for name, text in _FAIRNESS_GAUGES.items():
            gauge = GaugeMetricFamily(f"phaseserve_fairness_{name}", text)
            gauge.add_metric([], getattr(self._fairness, name.replace("_seconds", "_s")))
            yield gauge

    def _links(self) -> Iterator[Metric]:
        """Only between replicas of this fleet: a peer's name is a label."""
        here = {view.replica_id for view in self._views}
        links = [(view.replica_id, link) for view in self._views for link in view.links if link.peer_id in here]
        for name, text in _LINK_GAUGES.items():
            gauge = GaugeMetricFamily(f"phaseserve_link_{name}", text, labels=["replica", "peer"])
            for replica_id, link in links:
                if (value := _link_value(link, name)) is not None:
                    gauge.add_metric([replica_id, link.peer_id], value)
            yield gauge
        transfers = CounterMetricFamily(
            "phaseserve_link_transfers", "Hand-offs over a link.", labels=["replica", "peer", "outcome"]
        )
        info = GaugeMetricFamily(
            "phaseserve_link_info", "What carries KV to a peer.", labels=["replica", "peer", "transport", "device"]
        )
        for replica_id, link in links:
            transfers.add_metric([replica_id, link.peer_id, "completed"], link.transfers)
            transfers.add_metric([replica_id, link.peer_id, "failed"], link.failed_transfers)
            if link.transport:
                info.add_metric([replica_id, link.peer_id, link.transport, link.device], 1)
        yield transfers
        yield info


def _planner(found: PlannerSnapshot) -> Iterator[Metric]:
    """What has no value now has no sample."""
    values = (found.demand_per_s, found.carries_per_s, found.utilisation)
    for (name, text), value in zip(_PLANNER_GAUGES.items(), values, strict=True):
        gauge = GaugeMetricFamily(f"phaseserve_planner_{name}", text)
        if value is not None:
            gauge.add_metric([], value)
        yield gauge
    moving = GaugeMetricFamily("phaseserve_planner_moving", "1 while the fleet is being moved towards another mix.")
    moving.add_metric([], float(found.goal is not None))
    yield moving


def _link_value(link: LinkView, name: str) -> float | None:
    """None where nothing was measured yet."""
    is_measured = link.bytes_per_s is not None
    match name:
        case "bytes_per_second":
            return link.bytes_per_s
        case "spread":
            return link.spread if is_measured else None
        case "age_seconds":
            return link.age_s if is_measured else None
        case "latency_seconds":
            return link.latency_s
        case "bytes_in_flight":
            return link.bytes_in_flight
        case _:
            return float(link.why_not is None)
