"""HTTP: which object a path means, which verb a method is, and who performs it."""

from __future__ import annotations

import asyncio
from typing import Any, NamedTuple

from aiohttp import web

from tests.k8s.apiserver import directory, writes
from tests.k8s.apiserver.answers import Refusal, no_such_path
from tests.k8s.apiserver.bodies import read_body
from tests.k8s.apiserver.faults import Faults
from tests.k8s.apiserver.rbac import Attempt, authorize, user_of
from tests.k8s.apiserver.resources import Resource
from tests.k8s.apiserver.selectors import Selection
from tests.k8s.apiserver.storage import Object, Shelf, Store
from tests.k8s.apiserver.watches import Watch, is_set, list_page

MAX_BODY_BYTES = 8 << 20
HEALTH = (["healthz"], ["readyz"], ["livez"])


class Target(NamedTuple):
    """What a path means."""

    shelf: Shelf
    namespace: str | None
    name: str | None
    subresource: str | None

    @property
    def resource(self) -> Resource:
        """Of which kind."""
        return self.shelf.resource


class Server:
    """One API server over one store. `tokens`: user by bearer token; None lets everybody do everything."""

    def __init__(self, store: Store, tokens: dict[str, str] | None = None, bookmark_s: float = 5.0) -> None:
        self._store, self._tokens, self._bookmark_s = store, tokens, bookmark_s
        self._faults = Faults()

    def app(self) -> web.Application:
        """To be served."""
        app = web.Application(client_max_size=MAX_BODY_BYTES)
        app.router.add_route("*", "/{path:.*}", self._handle)
        return app

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        parts = [part for part in request.path.split("/") if part]
        try:
            if parts[:1] == ["_fake"]:
                return await self._order(request, parts[1])
            self._faults.note(request.method, str(request.rel_url))
            await self._delay()
            return await self._route(request, parts)
        except Refusal as refusal:
            headers = {"Retry-After": "1"} if refusal.code == 429 else None
            return web.json_response(refusal.status, status=refusal.code, headers=headers)

    async def _delay(self) -> None:
        if self._faults.slow_s:
            await asyncio.sleep(self._faults.slow_s)
        while self._faults.hanging:  # noqa: ASYNC110  (a fault that somebody ends over HTTP)
            await asyncio.sleep(0.02)

    async def _order(self, request: web.Request, what: str) -> web.Response:
        if what == "requests":
            return web.json_response({"count": self._faults.num_requests, "last": list(self._faults.requests)})
        if what == "compact":
            self._store.compact()
        else:
            self._faults.order(what, request.query)
        await self._store.tell()
        return web.json_response({"version": self._store.version})

    async def _route(self, request: web.Request, parts: list[str]) -> web.StreamResponse:
        resources = [shelf.resource for shelf in self._store.shelves.values()]
        if parts in HEALTH:
            return web.Response(text="ok")
        if parts == ["version"]:
            return web.json_response(directory.VERSION)
        if parts[:1] == ["openapi"]:
            return web.json_response(directory.openapi(resources, parts))
        if parts == ["api"]:
            return web.json_response({"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []})
        if parts == ["apis"]:
            return web.json_response(directory.groups(resources))
        if parts[:1] == ["api"] and len(parts) >= 2:
            group, version, rest = "", parts[1], parts[2:]
        elif parts[:1] == ["apis"] and len(parts) >= 3:
            group, version, rest = parts[1], parts[2], parts[3:]
        else:
            raise no_such_path()
        if not rest:
            return web.json_response(directory.resource_list(resources, group, version))
        return await self._serve(request, self._target(group, version, rest))

    def _target(self, group: str, version: str, rest: list[str]) -> Target:
        namespace = None
        own_subresource = group == "" and len(rest) == 3 and rest[2] in ("status", "finalize")
        if rest[0] == "namespaces" and len(rest) >= 3 and not own_subresource:
            namespace, rest = rest[1], rest[2:]
        shelf = self._store.shelves.get((group, version, rest[0]))
        if shelf is None or len(rest) > 3 or (len(rest) == 3 and rest[2] not in shelf.resource.subresources):
            raise no_such_path()
        return Target(shelf, namespace, rest[1] if len(rest) > 1 else None, rest[2] if len(rest) > 2 else None)

    async def _serve(self, request: web.Request, target: Target) -> web.StreamResponse:
        verb = _verb(request, target)
        self._faults.check(verb, target.resource.plural)
        user = user_of(request.headers.get("Authorization", ""), self._tokens)
        authorize(self._store, user, Attempt(verb, target.resource, target.namespace, target.name, target.subresource))
        selection = Selection.of(request.query, target.namespace)
        if verb == "watch":
            watch = Watch(self._store, self._faults, target.shelf, selection, self._bookmark_s)
            return await watch.run(request)
        if verb == "list":
            return web.json_response(list_page(self._store, target.shelf, selection, request.query))
        if verb == "deletecollection":
            for item in selection.of_shelf(target.shelf):
                writes.delete(self._store, target.shelf, item, {"gracePeriodSeconds": 0})
            await self._store.tell()
            return web.json_response({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success"})
        body = read_body(await request.read(), request.content_type)
        answer, status = self._perform(request, verb, target, body)
        await self._store.tell()
        return web.json_response(answer, status=status)

    def _perform(self, request: web.Request, verb: str, target: Target, body: Any) -> tuple[Object, int]:
        store, shelf, dry = self._store, target.shelf, request.query.get("dryRun") == "All"
        if verb == "create":
            return writes.create(store, shelf, target.namespace, body, dry), 201
        old = shelf.objects.get((target.namespace or "", target.name or ""))
        if old is None:
            if verb == "patch" and "apply-patch" in request.content_type:
                return writes.create(store, shelf, target.namespace, body, dry), 201
            message = f'{target.resource.full_name} "{target.name}" not found'
            raise Refusal(404, message, name=target.name, group=target.resource.group, kind=target.resource.plural)
        if verb == "get":
            return (writes.scale_of(target.resource, old) if target.subresource == "scale" else old), 200
        if verb == "delete":
            return (old if dry else writes.delete(store, shelf, old, body or {})), 200
        if verb == "patch":
            body = writes.patched(target.resource, old, body, request.content_type, target.subresource)
        new = writes.replace(store, shelf, old, body, target.subresource, dry)
        return (writes.scale_of(target.resource, new) if target.subresource == "scale" else new), 200


def _verb(request: web.Request, target: Target) -> str:
    if request.method == "GET" and is_set(request.query, "watch"):
        return "watch"
    verbs = {
        "GET": "get" if target.name else "list",
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete" if target.name else "deletecollection",
    }
    if request.method not in verbs:
        raise Refusal(405, "the server does not allow this method on the requested resource", "MethodNotAllowed")
    return verbs[request.method]
