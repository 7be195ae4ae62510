"""The router as an ASGI application, put together from its parts."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

import msgspec
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException
from starlette.requests import Request

from contracts.discovery import Discovery
from contracts.errors import ConfigError, ErrorInfo, InvalidRequest, PhaseServeError, RequestTimeout
from engine.checkpoint.model_files import ModelFiles
from engine.checkpoint.resolve import resolve_model
from router.answer_headers import kept_headers
from router.api_keys import ApiKeys
from router.chat_template import ChatTemplate
from router.client_text import clip
from router.config import RouterConfig
from router.discovery_metrics import DiscoveryMetrics
from router.endpoints import Served, build_routes
from router.fleet import Fleet
from router.http_body import OpenBodies
from router.intake import Intake
from router.metrics import RouterMetrics
from router.openai_reply import error_body
from router.operator_endpoints import build_operator_routes
from router.static_discovery import StaticDiscovery
from router.token_table import TokenTable
from router.tokenizing import PromptEncoder, load_tokenizer
from scheduling.cluster_core import ClusterCore

log = logging.getLogger("phaseserve.router")


def build_app(
    config: RouterConfig,
    files: ModelFiles | None = None,
    *,
    on_broken: Callable[[], None] | None = None,
    discovery: Discovery | None = None,
) -> FastAPI:
    """Resolves the model (unless `files` are given), loads tokenizer and template, connects nothing yet.

    `discovery` finds the replicas that `config` does not name.
    `on_broken` is called when the fleet loop ends by itself, which is a bug of ours: nothing can be served any more.
    Raises `ModelError` or `ConfigError`: whoever binds a port does so afterwards.
    """
    served, encoder = _served(config, files or resolve_model(config.model), discovery)

    def fleet_ended(task: asyncio.Task[None]) -> None:
        if not task.cancelled():
            log.critical("the fleet loop ended", exc_info=task.exception())
            if on_broken is not None:
                on_broken()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        fleet_task = asyncio.create_task(served.fleet.run())
        fleet_task.add_done_callback(fleet_ended)
        try:
            yield
        finally:
            fleet_task.cancel()
            await asyncio.wait([fleet_task])
            encoder.close()

    app = FastAPI(title="PhaseServe", openapi_url=None, redirect_slashes=False, lifespan=lifespan)
    app.include_router(build_operator_routes(served))
    app.include_router(build_routes(served))
    app.state.served = served
    app.add_exception_handler(PhaseServeError, _named_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _query_error)
    app.add_exception_handler(Exception, _our_bug)
    return app


def _served(config: RouterConfig, files: ModelFiles, discovery: Discovery | None) -> tuple[Served, PromptEncoder]:
    spec = files.spec
    if config.max_context is not None and config.max_context > spec.max_context:
        raise ConfigError(
            f"max_context {config.max_context} is over the model's own {spec.max_context}", param="max_context"
        )
    table = TokenTable(load_tokenizer(files.tokenizer_file))
    template = ChatTemplate(files.chat_template, files.special_tokens) if files.chat_template is not None else None
    names = config.served_names or (files.served_name,)
    metrics = RouterMetrics()
    discovery = discovery or StaticDiscovery(config.replicas)
    metrics.registry.register(DiscoveryMetrics(discovery))
    fleet = Fleet(config, ClusterCore(config.cluster), spec, table, metrics, discovery)
    encoder = PromptEncoder(
        table,
        vocab_size=spec.vocab_size,
        max_context=lambda: fleet.max_context,
        inline_chars=config.limits.inline_chars,
    )
    intake = Intake(
        names=names,
        limits=config.limits,
        vocab_size=spec.vocab_size,
        encoder=encoder,
        template=template,
    )
    served = Served(
        config, names, int(time.time()), OpenBodies(), intake, fleet, metrics, table, ApiKeys(config.api_keys)
    )
    return served, encoder


def _error(info: ErrorInfo, extra: Mapping[str, str] | None = None) -> Response:
    headers = dict(extra or {})
    if info.retry_after_s is not None:
        headers["retry-after"] = str(max(1, math.ceil(info.retry_after_s)))
    if info.status == 401:
        headers["www-authenticate"] = "Bearer"
    return Response(_encoded(info), status_code=info.status, media_type="application/json", headers=headers)


def _encoded(info: ErrorInfo) -> bytes:
    """Never raises, whatever text an error was made of: an exception in here would cost the client its answer."""
    try:
        return msgspec.json.encode(error_body(info))
    except UnicodeEncodeError:
        return json.dumps(error_body(info)).encode(errors="replace")


async def _named_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PhaseServeError)
    # A client that waited for "100 Continue", or was too slow, may go on with the body or not: nothing can follow it.
    closes = error.status == RequestTimeout.status or "expect" in request.headers
    headers = {"connection": "close"} if closes else {}
    return _error(error.info(), kept_headers(request) | headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = f"{request.method} {clip(request.url.path)}: {error.detail}"
    return _error(ErrorInfo(status=error.status_code, code="http_error", message=what), error.headers)


async def _query_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return _error(InvalidRequest(f"{name}: {first['msg']}", param=name).info())


async def _our_bug(request: Request, error: Exception) -> Response:
    return _error(ErrorInfo(status=500, code="internal_error", message="internal error; it was logged"))
