"""The objects and their history under one resourceVersion; waiters are told of every change.

With a journal file the objects outlive the process, as they do in etcd; the history does not, as in an API server,
which tells of changes from a cache that begins anew.
"""

from __future__ import annotations

import asyncio
import copy
import datetime
import json
import uuid
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from tests.k8s.apiserver.resources import BUILT_IN, Resource, defined_by

Object = dict[str, Any]
Kind = Literal["ADDED", "MODIFIED", "DELETED"]
HISTORY = 2000
NAMESPACES = ("default", "kube-system", "kube-node-lease", "kube-public")


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the history. `before` is the object that was replaced or deleted."""

    version: int
    kind: Kind
    after: Object
    before: Object | None


@dataclass(slots=True)
class Shelf:
    """All objects of one resource. What happened up to `forgotten` can no longer be told."""

    resource: Resource
    objects: dict[tuple[str, str], Object] = field(default_factory=dict)
    history: deque[Change] = field(default_factory=lambda: deque(maxlen=HISTORY))
    forgotten: int = 0


def now_text() -> str:
    """The time as in `creationTimestamp`."""
    return datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Store:
    """`write` is the only way in. Objects are never changed in place."""

    def __init__(self, journal: Path | None = None) -> None:
        self.version = 100
        self.shelves = {resource.key: Shelf(resource) for resource in BUILT_IN}
        self.changed = asyncio.Condition()
        self._journal: IO[str] | None = None
        if journal is not None and journal.exists():
            for line in journal.read_text().splitlines():
                self._replay(json.loads(line))
            self._forget(self.version)
        if journal is not None:
            self._journal = journal.open("a")
        if self.version == 100:
            for name in NAMESPACES:
                made = {"metadata": {"name": name}, "status": {"phase": "Active"}}
                self.write(self.shelves["", "v1", "namespaces"], made, "ADDED")

    async def tell(self) -> None:
        """Wake those that watch."""
        async with self.changed:
            self.changed.notify_all()

    def write(self, shelf: Shelf, given: Object, kind: Kind, before: Object | None = None) -> Object:
        """Give the object the next version and put it in place (or take it away). Returns it as it is stored."""
        self.version += 1
        made = copy.deepcopy(given)
        metadata = made.setdefault("metadata", {})
        made["apiVersion"], made["kind"] = shelf.resource.api_version, shelf.resource.kind
        if kind == "ADDED":
            metadata["uid"], metadata["creationTimestamp"] = str(uuid.uuid4()), now_text()
            if "spec" in made:
                metadata["generation"] = 1
        metadata["resourceVersion"] = str(self.version)
        if shelf.resource.plural == "customresourcedefinitions" and kind != "DELETED" and not made.get("status"):
            made["status"] = _established(made)
        self._place(shelf, Change(self.version, kind, made, before))
        if self._journal is not None:
            entry = {
                "shelf": shelf.resource.key,
                "version": self.version,
                "kind": kind,
                "after": made,
                "before": before,
            }
            self._journal.write(json.dumps(entry) + "\n")
            self._journal.flush()
        return made

    def compact(self) -> None:
        """Forget all history: every version that anybody has is too old. (etcd keeps the last five minutes.)"""
        self._forget(self.version + 1)
        self.version += 10

    def _forget(self, version: int) -> None:
        for shelf in self.shelves.values():
            shelf.history.clear()
            shelf.forgotten = version

    def _replay(self, entry: dict[str, Any]) -> None:
        self.version = entry["version"]
        change = Change(entry["version"], entry["kind"], entry["after"], entry["before"])
        self._place(self.shelves[tuple(entry["shelf"])], change)

    def _place(self, shelf: Shelf, change: Change) -> None:
        metadata = change.after["metadata"]
        key = (metadata.get("namespace") or "", metadata["name"])
        if change.kind == "DELETED":
            shelf.objects.pop(key, None)
        else:
            shelf.objects[key] = change.after
        if len(shelf.history) == HISTORY:
            shelf.forgotten = shelf.history[0].version
        shelf.history.append(change)
        if shelf.resource.plural == "customresourcedefinitions":
            for resource in defined_by(change.after):
                if change.kind == "DELETED":
                    self.shelves.pop(resource.key, None)
                else:
                    self.shelves.setdefault(resource.key, Shelf(resource))


def _established(crd: Object) -> Object:
    conditions = [
        {"type": name, "status": "True", "reason": "Ok", "message": "", "lastTransitionTime": now_text()}
        for name in ("NamesAccepted", "Established")
    ]
    names, versions = crd["spec"]["names"], crd["spec"]["versions"]
    return {"acceptedNames": names, "storedVersions": [versions[0]["name"]], "conditions": conditions}
