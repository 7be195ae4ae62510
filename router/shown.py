"""What `/decisions` and `/fleet` show, beyond the values themselves."""

from __future__ import annotations

from typing import Any

import msgspec

from contracts.handoff import LinkView
from contracts.plan import Decision
from router.fleet import Fleet
from scheduling.cluster_snapshot import ReplicaSnapshot


def shown_decision(decision: Decision) -> dict[str, Any]:
    """The decision as a JSON object; a hand-off says which share of its transfer was hidden behind compute."""
    shown: dict[str, Any] = msgspec.to_builtins(decision)
    if decision.outcome is not None and decision.outcome.handoff is not None:
        shown["outcome"]["handoff"]["hidden_share"] = decision.outcome.handoff.hidden_share
    return shown


def shown_fleet(fleet: Fleet, now: float) -> dict[str, Any]:
    """Replicas with role, state, endpoints and links; who takes turns with whom, and whose turn it is; what
    the planner found; how service is shared among keys; control endpoints that nobody answers at, and why."""
    snapshot = fleet.core.snapshot(now)
    replicas = [_shown_replica(fleet, replica) for replica in snapshot.replicas]
    macro_instances = [msgspec.to_builtins(macro) for macro in snapshot.macro_instances]
    missing = [{"endpoint": link.endpoint, "why_not": link.why_not} for link in fleet.links if link.replica_id is None]
    planner = msgspec.to_builtins(snapshot.planner)
    fairness = msgspec.to_builtins(snapshot.fairness)
    return {
        "replicas": replicas,
        "macro_instances": macro_instances,
        "planner": planner,
        "fairness": fairness,
        "not_joined": missing,
    }


def shown_replica(fleet: Fleet, replica_id: str, now: float) -> dict[str, Any] | None:
    """One of them, None when it is not there."""
    found = (replica for replica in fleet.core.snapshot(now).replicas if replica.replica_id == replica_id)
    replica = next(found, None)
    return None if replica is None else _shown_replica(fleet, replica)


def _shown_replica(fleet: Fleet, replica: ReplicaSnapshot) -> dict[str, Any]:
    view = replica.view
    identity = fleet.identity_of(replica.replica_id)
    endpoints = (link.endpoint for link in fleet.links if link.replica_id == replica.replica_id)
    return {
        "replica_id": replica.replica_id,
        "incarnation": replica.incarnation,
        "role": view.role,
        "wanted_role": replica.wanted_role,
        "pinned": replica.pinned,
        "guarded": view.guarded,
        "phase": view.phase,
        "macro_instance": replica.macro_instance,
        "draining": view.draining,
        "closed": replica.closed,
        "endpoint": next(endpoints, None),
        "device": None if identity is None else identity.device,
        "data_endpoints": () if identity is None else identity.data_endpoints,
        "fingerprint": None if identity is None else identity.fingerprint,
        "waiting": view.waiting,
        "running": view.running,
        "backlog_s": replica.backlog_s,
        "receiving": view.receiving,
        "sending": view.sending,
        "links": [_shown_link(link) for link in view.links],
    }


def _shown_link(link: LinkView) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(link)
    shown["gb_per_s"] = None if link.bytes_per_s is None else link.bytes_per_s / 1e9
    return shown
