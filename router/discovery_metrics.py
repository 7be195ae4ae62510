"""A discovery's own figures as metrics, read at each scrape."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from contracts.discovery import Discovery

_HELP = {
    "endpoints": "Replica addresses found.",
    "leads": "1 on the router that proposes sizes and changes roles.",
    "calls_total": "Requests to the API server.",
    "silent_seconds": "Time since the API server was heard of last.",
    "lists_total": "Pages of lists that were asked for.",
    "watches_total": "Watches that were opened.",
    "events_total": "Events of watches.",
    "errors_total": "Lists, watches and reads that failed.",
    "changes_total": "Changes of the file.",
    "terms_total": "Times that this router came to lead.",
    "election_errors_total": "Calls about the lease that failed.",
    "scalings_total": "Changes of a workload's size.",
    "scaling_refusals_total": "Proposals that were not followed.",
    "scaling_errors_total": "Calls about sizes that failed.",
    "labels_total": "Role labels written.",
    "label_errors_total": "Role labels that could not be written.",
}


class DiscoveryMetrics(Collector):
    """`phaseserve_discovery_*`."""

    def __init__(self, discovery: Discovery) -> None:
        self._discovery = discovery

    def collect(self) -> Iterator[Metric]:
        """One family a figure."""
        for name, value in self._discovery.figures().items():
            full, text = f"phaseserve_discovery_{name}", _HELP[name]
            if name.endswith("_total"):
                yield CounterMetricFamily(full.removesuffix("_total"), text, value)
            else:
                yield GaugeMetricFamily(full, text, value)
