"""Lists with pages, and watches: replay from a version, events rewritten for the selection, bookmarks, expiry."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from tests.k8s.apiserver.answers import Refusal
from tests.k8s.apiserver.faults import Faults
from tests.k8s.apiserver.selectors import Selection
from tests.k8s.apiserver.storage import Change, Object, Shelf, Store

POLL_S = 0.25
DEFAULT_WATCH_S = 1800.0


def is_set(query: Mapping[str, str], name: str) -> bool:
    """As the real server reads booleans: "True", "1" and an empty value all hold."""
    return name in query and query[name].lower() not in ("false", "0")


def list_page(store: Store, shelf: Shelf, selection: Selection, query: Mapping[str, str]) -> Object:
    """One page of a list; `continue` names the version and the place where it goes on. Raises `Refusal` 410."""
    items = selection.of_shelf(shelf)
    version, start = store.version, 0
    if token := query.get("continue"):
        version, start = json.loads(base64.b64decode(token))
        if version < shelf.forgotten:
            raise Refusal(410, "The provided continue parameter is too old to display a consistent list result.")
    metadata: Object = {"resourceVersion": str(version)}
    limit = int(query.get("limit") or 0)
    if limit and start + limit < len(items):
        metadata["continue"] = base64.b64encode(json.dumps([version, start + limit]).encode()).decode()
        metadata["remainingItemCount"] = len(items) - start - limit
    page = items[start : start + limit] if limit else items
    resource = shelf.resource
    return {"kind": f"{resource.kind}List", "apiVersion": resource.api_version, "metadata": metadata, "items": page}


def told(change: Change, selection: Selection) -> tuple[str, Object] | None:
    """What a watcher of a selection hears of a change: an object that leaves the selection is deleted for it."""
    is_in = selection.has(change.after)
    was_in = change.kind != "ADDED" and change.before is not None and selection.has(change.before)
    if change.kind == "DELETED":
        return ("DELETED", change.after) if was_in or is_in else None
    if is_in:
        return ("MODIFIED" if was_in else "ADDED"), change.after
    if not was_in:
        return None
    assert change.before is not None
    metadata = {**change.before["metadata"], "resourceVersion": str(change.version)}
    return "DELETED", {**change.before, "metadata": metadata}


class Watch:
    """One open watch; `run` serves it until its time is over or the connection ends."""

    def __init__(self, store: Store, faults: Faults, shelf: Shelf, selection: Selection, bookmark_s: float) -> None:
        self._store, self._faults, self._shelf, self._selection = store, faults, shelf, selection
        self._bookmark_s = bookmark_s
        self._answer = web.StreamResponse(headers={"Content-Type": "application/json"})

    async def run(self, request: web.Request) -> web.StreamResponse:
        """The whole answer."""
        self._answer.enable_chunked_encoding()
        try:
            await self._answer.prepare(request)
            await self._serve(request)
        except (ConnectionResetError, ConnectionAbortedError):
            pass
        return self._answer

    async def _serve(self, request: web.Request) -> None:
        query, now = request.query, asyncio.get_running_loop().time
        ends = now() + float(query.get("timeoutSeconds") or DEFAULT_WATCH_S)
        epoch, marked = self._faults.epoch, now()
        last = await self._begin(query)
        while last is not None:
            if self._faults.epoch != epoch:
                if request.transport is not None:
                    request.transport.abort()
                return
            if self._faults.hanging:
                await asyncio.sleep(0.02)
                continue
            if last < self._shelf.forgotten:
                await self._expire(last)
                return
            last = await self._replay(last)
            over = now() >= ends
            if is_set(query, "allowWatchBookmarks") and (over or now() - marked >= self._bookmark_s):
                last, marked = max(last, self._store.version), now()
                await self._bookmark(last)
            if over:
                return
            await self._wait(min(POLL_S, ends - now()))

    async def _begin(self, query: Mapping[str, str]) -> int | None:
        """The version from which on changes are told, None where that is too old."""
        since = query.get("resourceVersion", "")
        if since in ("", "0"):
            for item in self._selection.of_shelf(self._shelf):
                await self._send("ADDED", item)
            if is_set(query, "sendInitialEvents"):  # client-go from 1.35 on waits for this mark
                await self._bookmark(self._store.version, {"k8s.io/initial-events-end": "true"})
            return self._store.version
        if int(since) < self._shelf.forgotten:
            await self._expire(int(since))
            return None
        return int(since)

    async def _replay(self, last: int) -> int:
        for change in [change for change in self._shelf.history if change.version > last]:
            last = change.version
            event = told(change, self._selection)
            if event is not None and not self._faults.muted:
                await self._send(*event)
        return last

    async def _wait(self, at_most_s: float) -> None:
        async with self._store.changed:
            try:
                await asyncio.wait_for(self._store.changed.wait(), max(at_most_s, 0.001))
            except TimeoutError:
                return

    async def _bookmark(self, version: int, annotations: dict[str, str] | None = None) -> None:
        metadata: dict[str, Any] = {"resourceVersion": str(version), "creationTimestamp": None}
        if annotations:
            metadata["annotations"] = annotations
        resource = self._shelf.resource
        await self._send("BOOKMARK", {"kind": resource.kind, "apiVersion": resource.api_version, "metadata": metadata})

    async def _expire(self, last: int) -> None:
        await self._send("ERROR", Refusal(410, f"too old resource version: {last} ({self._store.version})").status)

    async def _send(self, kind: str, item: Object) -> None:
        await self._answer.write(json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n")
