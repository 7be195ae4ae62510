"""What `/decisions` and `/fleet` show, beyond the values themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.handoff import LinkView
from contracts.plan import Decision
from router.fleet import Fleet


def shown_decision(decision: Decision) -> dict[str, Any]:
    """The decision as a JSON object; a hand-off says which share of its transfer was hidden behind compute."""
    shown: dict[str, Any] = msgspec.to_builtins(decision)
    if decision.outcome is not None and decision.outcome.handoff is not None:
        shown["outcome"]["handoff"]["hidden_share"] = decision.outcome.handoff.hidden_share
    return shown


def shown_fleet(fleet: Fleet, now: float) -> dict[str, Any]:
    """Replicas with role, state, endpoints and links; control endpoints that nobody answers at, and why."""
    endpoints = {link.replica_id: link.endpoint for link in fleet.links if link.replica_id is not None}
    replicas = []
    for replica in fleet.core.snapshot(now).replicas:
        view = replica.view
        identity = fleet.identity_of(replica.replica_id)
        replicas.append(
            {
                "replica_id": replica.replica_id,
                "incarnation": replica.incarnation,
                "role": view.role,
                "phase": view.phase,
                "closed": replica.closed,
                "endpoint": endpoints.get(replica.replica_id),
                "device": None if identity is None else identity.device,
                "data_endpoints": () if identity is None else identity.data_endpoints,
                "fingerprint": None if identity is None else identity.fingerprint,
                "waiting": view.waiting,
                "running": view.running,
                "receiving": view.receiving,
                "sending": view.sending,
                "links": [_shown_link(link) for link in view.links],
            }
        )
    missing = [{"endpoint": link.endpoint, "why_not": link.why_not} for link in fleet.links if link.replica_id is None]
    return {"replicas": replicas, "not_joined": missing}


def _shown_link(link: LinkView) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(link)
    shown["gb_per_s"] = None if link.bytes_per_s is None else link.bytes_per_s / 1e9
    return shown
