"""The HTTP endpoints. They parse nothing and decide nothing: bodies go to the intake, requests to the fleet."""

from __future__ import annotations

import re
import time
import uuid
from contextlib import ExitStack
from dataclasses import dataclass

import msgspec
from fastapi import APIRouter, Depends, Query
from fastapi.responses import Response
from starlette.requests import Request

from contracts.errors import Overloaded, PhaseServeError, UnknownModel, UnknownRequest
from router.answer_headers import answer_headers, keep_headers
from router.api_keys import ApiKeys
from router.client_text import clip
from router.config import RouterConfig
from router.event_stream import EventStream
from router.exchange import Exchange
from router.fleet import Fleet
from router.generation import Endpoint, Generation
from router.http_body import OpenBodies, read_body
from router.intake import Intake
from router.metrics import RouterMetrics, outcome_of_status
from router.share_key import share_key
from router.shown import shown_decision
from router.token_table import TokenTable

_CLIENT_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}\Z")
_PREFIX = {Endpoint.CHAT: "chatcmpl", Endpoint.COMPLETIONS: "cmpl"}
READ = ["GET", "HEAD"]


@dataclass(frozen=True, slots=True)
class Served:
    """Everything the endpoints need, built once at start."""

    config: RouterConfig
    names: tuple[str, ...]
    started_s: int
    bodies: OpenBodies
    intake: Intake
    fleet: Fleet
    metrics: RouterMetrics
    table: TokenTable
    api_keys: ApiKeys


def build_routes(served: Served) -> APIRouter:
    """All routes over one `Served`."""
    routes = APIRouter()

    # Plain Starlette routes where time to first token counts: FastAPI's would look for parameters to inject first.
    async def chat_completions(request: Request) -> Response:
        return await _generate(request, served, Endpoint.CHAT)

    async def completions(request: Request) -> Response:
        return await _generate(request, served, Endpoint.COMPLETIONS)

    routes.add_route("/v1/chat/completions", chat_completions, methods=["POST"])
    routes.add_route("/v1/completions", completions, methods=["POST"])

    def key_holder(request: Request) -> None:
        served.api_keys.check(request.headers)

    only_key_holders = [Depends(key_holder)]

    @routes.api_route("/v1/models", methods=READ, dependencies=only_key_holders)
    async def models() -> Response:
        return _json({"object": "list", "data": [_model(served, name) for name in served.names]})

    @routes.api_route("/v1/models/{name:path}", methods=READ, dependencies=only_key_holders)
    async def model(name: str) -> Response:
        if name not in served.names:
            raise UnknownModel(f"the model {clip(name)!r} is not served here", param="model")
        return _json(_model(served, name))

    @routes.api_route("/v1/requests/{request_id}/cancel", methods=["POST"], dependencies=only_key_holders)
    @routes.api_route("/v1/requests/{request_id}", methods=["DELETE"], dependencies=only_key_holders)
    async def cancel(request_id: str) -> Response:
        num_cancelled = served.fleet.cancel(request_id)
        if not num_cancelled:
            raise UnknownRequest(f"no request {clip(request_id)!r} is under way here", param="request_id")
        return _json({"id": request_id, "status": "cancelled", "requests": num_cancelled})

    @routes.api_route("/health/live", methods=READ)
    async def live() -> Response:
        return _json({"status": "broken"}, 503) if served.fleet.stopped else _json({"status": "live"})

    @routes.api_route("/health/ready", methods=READ)
    async def ready() -> Response:
        reason = served.fleet.not_ready()
        return _json({"status": "ready"}) if reason is None else _json({"status": "not ready", "reason": reason}, 503)

    @routes.api_route("/metrics", methods=READ)
    async def metrics() -> Response:
        served.metrics.observe_fleet(served.fleet.core.snapshot(time.monotonic()), served.fleet.num_flights)
        return Response(served.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @routes.api_route("/decisions", methods=READ)
    async def decisions(limit: int = Query(default=100, ge=1, le=10_000)) -> Response:
        newest = [shown_decision(decision) for decision in served.fleet.core.decisions()[:limit]]
        return _json({"decisions": newest, "fleet": served.fleet.core.snapshot(time.monotonic())})

    return routes


async def _generate(request: Request, served: Served, endpoint: Endpoint) -> Response:
    arrived_s = time.monotonic()
    client_id, request_id = _ids(request, endpoint)
    try:
        generation = await _judged(request, served, endpoint, request_id)
    except PhaseServeError as error:
        served.metrics.requests.labels(endpoint.value, outcome_of_status(error.status)).inc()
        raise
    with ExitStack() as until_answered:
        exchange = until_answered.enter_context(_open(request, served, generation, arrived_s))
        until_answered.callback(keep_headers, request, exchange.call, client_id)  # for an error
        if generation.stream:
            first = await exchange.first()
            until_answered.pop_all()  # from here on the stream closes it
            return EventStream(exchange, first, answer_headers(exchange.call, client_id))
        answer = await exchange.whole()
    return Response(answer, media_type="application/json", headers=answer_headers(exchange.call, client_id))


async def _judged(request: Request, served: Served, endpoint: Endpoint, request_id: str) -> Generation:
    served.api_keys.check(request.headers)
    limits = served.config.limits
    _check_room(served)
    body = await read_body(request, limits, served.bodies)
    _check_room(served)  # others may have come while it arrived
    with served.bodies.judging():
        judge = served.intake.chat if endpoint is Endpoint.CHAT else served.intake.completion
        return await judge(body, request_id)


def _check_room(served: Served) -> None:
    max_open = served.config.limits.max_open
    if served.bodies.num_judged + served.fleet.num_flights >= max_open:
        raise Overloaded(f"{max_open} requests are open already", retry_after_s=1.0)


def _open(request: Request, served: Served, generation: Generation, arrived_s: float) -> Exchange:
    key = share_key(request.headers, generation.user, served.config.fair_share_by)
    return Exchange(
        request,
        msgspec.structs.replace(generation, key=key),
        arrived_s=arrived_s,
        fleet=served.fleet,
        metrics=served.metrics,
        table=served.table,
        deadline_s=served.config.request_deadline_s,
    )


def _ids(request: Request, endpoint: Endpoint) -> tuple[str, str]:
    """The id that is echoed in X-Request-Id, and the answer's id, which ends with it."""
    theirs = request.headers.get("x-request-id", "")
    client_id = theirs if _CLIENT_ID.match(theirs) else uuid.uuid4().hex
    return client_id, f"{_PREFIX[endpoint]}-{client_id}"


def _model(served: Served, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": served.started_s,
        "owned_by": "phaseserve",
        "max_model_len": served.fleet.max_context,
    }


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status_code=status, media_type="application/json")
