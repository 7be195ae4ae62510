"""The router's discovery in Kubernetes: endpoints from slices, leadership from a lease, sizes and labels written."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
import uuid
from collections.abc import Mapping

from contracts.cluster_io import ProposeReplicas
from contracts.discovery import FleetSide
from k8s.access import LIST_SLICES, WATCH_SLICES
from k8s.api import ApiClient
from k8s.cluster_events import ClusterEvents
from k8s.config import KubernetesConfig
from k8s.credentials import Cluster, find_cluster
from k8s.election import Election
from k8s.objects import EndpointSlice
from k8s.reflector import Reflector
from k8s.role_labels import RoleLabels
from k8s.scaler import Scaler
from k8s.slices import Endpoints, endpoints_of

log = logging.getLogger("phaseserve.k8s")

MAX_IDENTITY = 200


async def discovery(config: KubernetesConfig) -> KubernetesDiscovery:
    """Raises `ConfigError` where no API server can be named."""
    return KubernetesDiscovery(config, await find_cluster(config.kubeconfig))


class KubernetesDiscovery:
    """A `contracts.discovery.Discovery`."""

    def __init__(self, config: KubernetesConfig, cluster: Cluster) -> None:
        self._config, self._cluster = config, cluster
        self._namespace = config.namespace or cluster.namespace
        name = config.election.identity or socket.gethostname()
        self.identity = f"{name[:MAX_IDENTITY]}_{uuid.uuid4().hex[:8]}"  # another process here is another candidate
        self._endpoints: Endpoints = {}
        self._api: ApiClient | None = None
        self._slices: Reflector[EndpointSlice] | None = None
        self._election: Election | None = None
        self._scaler: Scaler | None = None
        self._labels: RoleLabels | None = None

    async def run(self, fleet: FleetSide) -> None:
        """Until cancelled."""
        log.info("replicas are found in namespace %s of %s", self._namespace, self._cluster.server)
        async with ApiClient(self._cluster, self._namespace) as api:
            self._api = api
            self._build(api, fleet)
            async with asyncio.TaskGroup() as group:
                for part in (self._slices, self._election, self._scaler, self._labels):
                    if part is not None:
                        group.create_task(part.run())

    def _build(self, api: ApiClient, fleet: FleetSide) -> None:
        config = self._config

        def changed(slices: Mapping[str, EndpointSlice]) -> None:
            self._changed(endpoints_of(slices.values(), config.port_name), fleet)

        self._slices = Reflector(
            api,
            (LIST_SLICES, WATCH_SLICES),
            EndpointSlice,
            config.selector,
            changed,
            watch_s=config.watch_s,
            slack_s=config.slack_s,
            relist_s=config.relist_s,
            max_backoff_s=config.max_backoff_s,
        )
        if config.election.enabled:
            self._election = Election(api, config.election, self.identity, fleet.lead)
        if config.scaling.enabled:
            events = ClusterEvents(api, self.identity)
            self._scaler = Scaler(api, config.scaling, fleet, events, self._leads)
        if config.label_roles:
            self._labels = RoleLabels(api, fleet, self._leads)

    def proposed(self, proposal: ProposeReplicas) -> None:
        """To the scaler, if there is one."""
        if self._scaler is not None:
            self._scaler.propose(proposal)

    def trouble(self) -> str | None:
        """Why nothing is heard of the fleet, or None."""
        return "discovery has not begun" if self._slices is None else self._slices.trouble

    def figures(self) -> Mapping[str, float]:
        """Counters and gauges of all parts."""
        found: dict[str, float] = {"endpoints": len(self._endpoints), "leads": self._leads()}
        if self._api is not None:
            found["calls_total"] = self._api.num_calls
        if (slices := self._slices) is not None:
            now = time.monotonic()
            found |= {"silent_seconds": max(0.0, now - slices.heard_at), "lists_total": slices.lists}
            found |= {"watches_total": slices.watches, "events_total": slices.events, "errors_total": slices.errors}
        if (election := self._election) is not None:
            found |= {"terms_total": election.terms, "election_errors_total": election.errors}
        if (scaler := self._scaler) is not None:
            found |= {"scalings_total": scaler.changes, "scaling_refusals_total": scaler.refusals}
            found["scaling_errors_total"] = scaler.errors
        if (labels := self._labels) is not None:
            found |= {"labels_total": labels.patches, "label_errors_total": labels.errors}
        return found

    def _leads(self) -> bool:
        return self._election is None or self._election.leads

    def _changed(self, endpoints: Endpoints, fleet: FleetSide) -> None:
        if endpoints.keys() != self._endpoints.keys():
            come, gone = endpoints.keys() - self._endpoints.keys(), self._endpoints.keys() - endpoints.keys()
            log.info("replicas: %d (%d come, %d gone)", len(endpoints), len(come), len(gone))
        self._endpoints = endpoints
        fleet.found(endpoints.keys())
