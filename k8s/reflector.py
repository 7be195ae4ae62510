"""A local copy of the objects of one kind that a selector names: list once, then watch, for ever.

- A watch that ends, breaks or is refused is resumed from the last version seen; only a version that the server has
  forgotten (410) makes it list again. Both wait longer and longer while they fail.
- The server ends each watch after about `watch_s`; one that is still open `slack_s` later is a dead connection.
- Every `relist_s` it lists all the same, which makes up for events that got lost (etcd restored, a proxy's bug).
- Bookmarks move the version along while nothing of ours changes, so that it is seldom forgotten.
- Whatever fails, the last copy is kept.
- Lists come in pages; one whose next page was forgotten meanwhile begins anew.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any, Generic, TypeVar

import msgspec

from k8s.access import Access
from k8s.api import ApiClient, ApiError, ApiUnreachableError, refusal
from k8s.backoff import Backoff
from k8s.objects import Bookmark, Metadata, RawEvent, RawList

log = logging.getLogger("phaseserve.k8s")

LIST_TIMEOUT_S = 20.0
PAGE = "500"
BRIEF_S = 0.5
"""Watches that the server ends at once are not opened more often than this."""
Item = TypeVar("Item")


class Reflector(Generic[Item]):
    """`run` keeps `items` (by name) as they are in the cluster and calls `on_change` whenever they changed.

    `item` is a msgspec type with `metadata`. Counters: `lists`, `watches`, `events`, `errors`.
    """

    def __init__(
        self,
        api: ApiClient,
        access: tuple[Access, Access],
        item: type[Item],
        selector: str,
        on_change: Callable[[Mapping[str, Item]], None],
        *,
        watch_s: float,
        slack_s: float,
        max_backoff_s: float,
        relist_s: float,
    ) -> None:
        self._api, (self._list_access, self._watch_access) = api, access
        self._decoder: msgspec.json.Decoder[Item] = msgspec.json.Decoder(item)
        self._selector, self._on_change = selector, on_change
        self._watch_s, self._slack_s, self._relist_s = watch_s, slack_s, relist_s
        self._relist_at = 0.0
        self._backoff = Backoff(max_backoff_s)
        self._version: str | None = None
        self.items: dict[str, Item] = {}
        self.lists = self.watches = self.events = self.errors = 0
        self.synced = False
        self.trouble: str | None = "nothing heard from the API server yet"
        self.heard_at = time.monotonic()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            began = time.monotonic()
            try:
                if self._version is None or began >= self._relist_at:
                    await self._list()
                await self._watch()
            except (ApiError, ApiUnreachableError) as error:
                lasted_s = time.monotonic() - began
                if lasted_s > self._watch_s / 2:
                    self._backoff.worked()
                await asyncio.sleep(self._failed(error))
                continue
            self._backoff.worked()
            self._well()
            if time.monotonic() - began < BRIEF_S:
                await asyncio.sleep(BRIEF_S)

    async def _list(self) -> None:
        found: dict[str, Item] = {}
        token = ""
        while True:
            self.lists += 1
            query = {"labelSelector": self._selector, "limit": PAGE, **({"continue": token} if token else {})}
            page = await self._api.call(self._list_access, RawList, query=query, timeout_s=LIST_TIMEOUT_S)
            for raw in page.items or ():
                item = self._decoded(raw)
                found[_metadata(item).name] = item
            token = page.metadata.continue_
            if not token:
                break
        changed = not self.synced or found != self.items
        self.items, self._version, self.synced = found, page.metadata.resource_version, True
        self._relist_at = time.monotonic() + self._relist_s * random.uniform(0.9, 1.1)
        self._well()
        if changed:
            self._on_change(self.items)

    async def _watch(self) -> None:
        self.watches += 1
        length_s = min(self._watch_s * random.uniform(0.8, 1.2), self._relist_s)
        length_s = max(1, round(length_s))
        query = {
            "labelSelector": self._selector,
            "resourceVersion": self._version or "",
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(length_s),
        }
        async with aclosing(self._api.watch(self._watch_access, query, length_s + self._slack_s)) as lines:
            async for line in lines:
                if line.strip():
                    self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            event = msgspec.json.decode(line, type=RawEvent)
            if event.type == "BOOKMARK":
                self._version = msgspec.json.decode(event.object, type=Bookmark).metadata.resource_version
                self._well()
                return
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ApiUnreachableError(f"a watch told what is no event: {error}") from error
        if event.type == "ERROR":
            raise refusal(bytes(event.object), 500)
        item = self._decoded(event.object)
        metadata = _metadata(item)
        self.events += 1
        self._version = metadata.resource_version
        if event.type == "DELETED":
            self.items.pop(metadata.name, None)
        else:
            self.items[metadata.name] = item
        self._well()
        self._on_change(self.items)

    def _decoded(self, raw: Any) -> Item:
        try:
            return self._decoder.decode(raw)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise ApiUnreachableError(f"an object that is none: {error}") from error

    def _well(self) -> None:
        self.heard_at = time.monotonic()
        if self.trouble is not None and self.errors:
            log.info("%s are heard of again", self._watch_access.resource)
        self.trouble = None

    def _failed(self, error: ApiError | ApiUnreachableError) -> float:
        """Note it, and say how long to wait."""
        self.errors += 1
        wait_s = self._backoff.failed(random.random())
        if isinstance(error, ApiError) and error.status == 410:
            self._version = None
            return wait_s / 2
        told = _in_words(error, self._watch_access.resource, self._api.namespace)
        if told != self.trouble:
            kept = f"{len(self.items)} known are kept" if self.synced else "none is known yet"
            log.warning("%s; %s; tried again for ever", told, kept)
            self.trouble = told
        return wait_s


def _metadata(item: Any) -> Metadata:
    metadata: Metadata = item.metadata
    return metadata


def _in_words(error: ApiError | ApiUnreachableError, resource: str, namespace: str) -> str:
    if isinstance(error, ApiError) and error.status in (401, 403):
        return f"the API server lets nobody of this name see {resource} in namespace {namespace!r}: {error.message}"
    return f"{resource} in namespace {namespace!r} cannot be seen: {error}"
