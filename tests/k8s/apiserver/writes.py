"""Create, replace, patch and delete with the real server's rules: locking, no-op writes, subresources, finalizers."""

from __future__ import annotations

import copy
import re
import uuid
from typing import Any

from tests.k8s.apiserver.answers import Refusal
from tests.k8s.apiserver.patches import json_patched, merged
from tests.k8s.apiserver.resources import Resource
from tests.k8s.apiserver.selectors import dig
from tests.k8s.apiserver.storage import Object, Shelf, Store, now_text

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.:]*[a-z0-9])?")
_MICRO_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}(Z|[+-]\d\d:\d\d)")
_SERVER_OWNED = ("uid", "creationTimestamp", "name", "namespace", "deletionTimestamp", "generation")
_KEPT_AT_CREATION = ("namespaces", "nodes")  # whose status may be given at once
Key = tuple[str, str]


def create(store: Store, shelf: Shelf, namespace: str | None, given: Object, dry: bool) -> Object:
    """The new object. Raises `Refusal` 404, 409, 422 or 400."""
    resource = shelf.resource
    made = copy.deepcopy(given)
    metadata = made.setdefault("metadata", {})
    if resource.namespaced:
        metadata["namespace"] = namespace
    if not metadata.get("name") and metadata.get("generateName"):
        metadata["name"] = metadata["generateName"] + uuid.uuid4().hex[:5]
    check(store, resource, made)
    name = metadata["name"]
    if (metadata.get("namespace") or "", name) in shelf.objects:
        message = f'{resource.full_name} "{name}" already exists'
        raise Refusal(409, message, "AlreadyExists", name=name, kind=resource.plural)
    for owned in ("resourceVersion", "uid", "managedFields", "deletionTimestamp"):
        metadata.pop(owned, None)
    if "status" in resource.subresources and resource.plural not in _KEPT_AT_CREATION:
        made.pop("status", None)
    return made if dry else store.write(shelf, made, "ADDED")


def patched(resource: Resource, old: Object, patch: Any, content_type: str, subresource: str | None) -> Object:
    """The object (or its scale) as a patch wants it."""
    base = scale_of(resource, old) if subresource == "scale" else old
    if "json-patch" in content_type:
        result: Object = json_patched(base, patch)
        return result
    strategic = "strategic" in content_type or "apply-patch" in content_type
    whole: Object = merged(base, patch, strategic)
    return whole


def replace(store: Store, shelf: Shelf, old: Object, wanted: Object, subresource: str | None, dry: bool) -> Object:
    """Put the object, its status or its scale in place of the old. Raises `Refusal` 409 where that has moved on."""
    resource, name = shelf.resource, old["metadata"]["name"]
    version = dig(wanted, ("metadata", "resourceVersion"))
    if version and version != old["metadata"]["resourceVersion"]:
        message = (
            f'Operation cannot be fulfilled on {resource.full_name} "{name}": the object has been modified; '
            "please apply your changes to the latest version and try again"
        )
        raise Refusal(409, message, name=name, kind=resource.plural)
    new = _with(resource, old, wanted, subresource)
    if subresource is None:
        check(store, resource, new)
    if new.get("spec") != old.get("spec") and "generation" in old["metadata"]:
        new["metadata"]["generation"] = old["metadata"]["generation"] + 1
    if dry or _compared(new, resource) == _compared(old, resource):  # a write that changes nothing is none
        new["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
        return new
    if new["metadata"].get("deletionTimestamp") and not new["metadata"].get("finalizers"):
        return store.write(shelf, new, "DELETED", old)
    return store.write(shelf, new, "MODIFIED", old)


def delete(store: Store, shelf: Shelf, old: Object, options: Object) -> Object:
    """Take an object away; one with finalizers is only marked, and so is a pod that is given time."""
    _check_preconditions(old, options.get("preconditions") or {})
    metadata = old["metadata"]
    grace_s = options.get("gracePeriodSeconds", dig(old, ("spec", "terminationGracePeriodSeconds"), 30))
    waits = shelf.resource.plural == "pods" and grace_s > 0 and dig(old, ("spec", "nodeName")) is not None
    if metadata.get("finalizers") or waits:
        if metadata.get("deletionTimestamp"):
            return old
        marked = copy.deepcopy(old)
        marked["metadata"] |= {"deletionTimestamp": now_text(), "deletionGracePeriodSeconds": grace_s if waits else 0}
        return store.write(shelf, marked, "MODIFIED", old)
    if shelf.resource.plural == "namespaces":
        for other in list(store.shelves.values()):
            for (namespace, _), item in list(other.objects.items()):
                if other.resource.namespaced and namespace == metadata["name"]:
                    store.write(other, item, "DELETED", item)
    return store.write(shelf, old, "DELETED", old)


def scale_of(resource: Resource, item: Object) -> Object:
    """The scale subresource of an object."""
    assert resource.scale is not None
    metadata, (wanted, told) = item["metadata"], resource.scale
    labels = dig(item, ("spec", "selector", "matchLabels"), {}) or {}
    kept = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
    selector = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": {name: metadata[name] for name in kept if name in metadata},
        "spec": {"replicas": dig(item, wanted, 0)},
        "status": {"replicas": dig(item, told, 0) or 0, "selector": selector},
    }


def check(store: Store, resource: Resource, item: Object) -> None:
    """What the server itself checks of every object. Raises `Refusal`."""
    metadata = item["metadata"]
    namespace, name = metadata.get("namespace"), metadata.get("name", "")
    if resource.namespaced and ("", namespace) not in store.shelves["", "v1", "namespaces"].objects:
        raise Refusal(404, f'namespaces "{namespace}" not found', name=namespace, kind="namespaces")
    if not _NAME.fullmatch(name) or len(name) > 253:
        message = f'{resource.kind}.{resource.group} "{name}" is invalid: metadata.name: Invalid value'
        raise Refusal(422, message, name=name, kind=resource.kind)
    if resource.plural == "leases":
        for field in ("acquireTime", "renewTime"):
            time = dig(item, ("spec", field))
            if time and not _MICRO_TIME.fullmatch(str(time)):
                layout = '"2006-01-02T15:04:05.000000Z07:00"'
                message = f'Lease in version "v1" cannot be handled as a Lease: parsing time "{time}" as {layout}'
                raise Refusal(400, message)


def _with(resource: Resource, old: Object, wanted: Object, subresource: str | None) -> Object:
    new = copy.deepcopy(old)
    if subresource == "scale":
        assert resource.scale is not None
        place = new
        for part in resource.scale[0][:-1]:
            place = place.setdefault(part, {})
        place[resource.scale[0][-1]] = int(dig(wanted, ("spec", "replicas"), 0))
    elif subresource == "status":
        new["status"] = wanted.get("status", {})
    else:
        new = copy.deepcopy(wanted)
        owned = {name: value for name, value in old["metadata"].items() if name in _SERVER_OWNED}
        new["metadata"] = {**wanted.get("metadata", {}), **owned}
        new["metadata"].pop("managedFields", None)
        if "status" in resource.subresources:
            new.pop("status", None)
            if "status" in old:
                new["status"] = old["status"]
    return new


def _compared(item: Object, resource: Resource) -> Object:
    metadata = {name: value for name, value in item["metadata"].items() if name != "resourceVersion"}
    return {**item, "metadata": metadata, "apiVersion": resource.api_version, "kind": resource.kind}


def _check_preconditions(old: Object, wanted: Object) -> None:
    for field in ("uid", "resourceVersion"):
        if field in wanted and wanted[field] != old["metadata"][field]:
            raise Refusal(409, f"Precondition failed: {field}")
