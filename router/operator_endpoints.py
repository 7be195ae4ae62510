"""The operator's endpoints: what the fleet is, what was decided about it, and wishes for the single replica.

A wish is answered with 202 and the replica as it is then: `wanted_role` and `role` agree once it is fulfilled.
"""

from __future__ import annotations

import time

import msgspec
from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.requests import Request

from contracts.cluster_io import ReplicaDrainRequested, RoleRequested
from contracts.errors import PhaseServeError, UnknownReplica
from contracts.phase import Role
from router.client_text import clip
from router.endpoints import READ, Served
from router.http_body import read_body
from router.json_body import parse_body
from router.operators import require_operator
from router.shown import shown_fleet, shown_replica


class RoleBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of `POST /fleet/replicas/{id}/role`. `pinned`: the fleet planner leaves the replica alone from now on."""

    role: Role
    pinned: bool = True


def build_operator_routes(served: Served) -> APIRouter:
    """All routes below `/fleet`."""
    routes = APIRouter()
    fleet = served.fleet

    @routes.api_route("/fleet", methods=READ)
    async def show() -> Response:
        return _json(shown_fleet(fleet, time.monotonic()))

    @routes.api_route("/fleet/decisions", methods=READ)
    async def decisions(limit: int = Query(default=100, ge=1, le=10_000)) -> Response:
        return _json({"decisions": fleet.core.fleet_decisions()[:limit]})

    async def set_role(request: Request) -> Response:
        require_operator(request, served.config.admin_token)
        replica_id = _addressed(served, request)
        wish = parse_body(await read_body(request, served.config.limits, served.bodies), RoleBody)
        _refuse(served, fleet.core.why_not_role(replica_id, wish.role))
        fleet.tell(RoleRequested(replica_id, wish.role, wish.pinned))
        return _json(shown_replica(fleet, replica_id, time.monotonic()), 202)

    async def drain(request: Request) -> Response:
        require_operator(request, served.config.admin_token)
        replica_id = _addressed(served, request)
        _refuse(served, fleet.core.why_not_drain(replica_id))
        fleet.tell(ReplicaDrainRequested(replica_id))
        return _json(shown_replica(fleet, replica_id, time.monotonic()), 202)

    routes.add_route("/fleet/replicas/{replica_id:path}/role", set_role, methods=["POST"])
    routes.add_route("/fleet/replicas/{replica_id:path}/drain", drain, methods=["POST"])
    return routes


def _refuse(served: Served, refusal: PhaseServeError | None) -> None:
    if refusal is None:
        return
    config = served.config
    if isinstance(refusal, UnknownReplica) and config.shards > 1:
        own = ", ".join(link.endpoint for link in served.fleet.links)
        message = f"{refusal.message}; this router is shard {config.shard} of {config.shards} and has only {own}"
        raise UnknownReplica(message, param=refusal.param)
    raise refusal


def _addressed(served: Served, request: Request) -> str:
    """The replica that the path names. One that is not joined is refused here: its name may be of any length."""
    replica_id: str = request.path_params["replica_id"]
    if served.fleet.identity_of(replica_id) is None:
        _refuse(served, UnknownReplica(f"no replica {clip(replica_id)!r} is joined", param="replica_id"))
    return replica_id


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
