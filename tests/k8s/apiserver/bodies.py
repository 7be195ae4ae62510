"""Request bodies: JSON, YAML, and the protobuf that Go's typed clients (Helm's release storage, kubectl) send."""

from __future__ import annotations

import base64
import json
from typing import Any

import yaml

from tests.k8s.apiserver.answers import Refusal

_METADATA = {
    1: ("name", "text"),
    2: ("generateName", "text"),
    3: ("namespace", "text"),
    6: ("resourceVersion", "text"),
    11: ("labels", "map"),
    12: ("annotations", "map"),
    14: ("finalizers", "texts"),
}
_KINDS: dict[str, dict[int, tuple[str, Any]]] = {
    "Secret": {1: ("metadata", _METADATA), 2: ("data", "bytes map"), 3: ("type", "text")},
    "ConfigMap": {1: ("metadata", _METADATA), 2: ("data", "map")},
    "Namespace": {1: ("metadata", _METADATA)},
    "DeleteOptions": {5: ("dryRun", "texts")},
}
"""Field numbers from Kubernetes' generated.proto, for the kinds that these clients send so; others get 415."""
_MAGIC = b"k8s\0"
_UNKNOWN = {1: ("type", {1: ("apiVersion", "text"), 2: ("kind", "text")}), 2: ("raw", "bytes")}
_ENTRY = {1: ("key", "text"), 2: ("value", "bytes")}


def read_body(raw: bytes, content_type: str) -> Any:
    """The body as JSON values, {} for none. Raises `Refusal`."""
    if not raw:
        return {}
    if "protobuf" in content_type:
        return _from_protobuf(raw)
    try:
        return json.loads(raw) if "json" in content_type else yaml.safe_load(raw)
    except (yaml.YAMLError, ValueError) as error:
        raise Refusal(400, str(error)) from error


def _from_protobuf(raw: bytes) -> dict[str, Any]:
    outer = _message(raw[len(_MAGIC) :], _UNKNOWN)
    kind = outer.get("type", {}).get("kind", "")
    if raw[: len(_MAGIC)] != _MAGIC or kind not in _KINDS:
        raise Refusal(415, f"this server reads no protobuf {kind}: send JSON")
    return {**outer["type"], **_message(outer.get("raw", b""), _KINDS[kind])}


def _message(data: bytes, fields: dict[int, tuple[str, Any]]) -> dict[str, Any]:
    at, found = 0, dict[str, Any]()
    while at < len(data):
        tag, at = _varint(data, at)
        number, wire_type = tag >> 3, tag & 7
        if wire_type == 0:
            _, at = _varint(data, at)
            continue
        size, at = _varint(data, at) if wire_type == 2 else ({1: 8, 5: 4}[wire_type], at)
        value, at = data[at : at + size], at + size
        if number in fields:
            _take(found, *fields[number], value)
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at


def _take(found: dict[str, Any], name: str, kind: Any, value: bytes) -> None:
    if isinstance(kind, dict):
        found[name] = _message(value, kind)
    elif kind == "text":
        if value:
            found[name] = value.decode()
    elif kind == "texts":
        found.setdefault(name, []).append(value.decode())
    elif kind == "bytes":
        found[name] = value
    else:
        entry = _message(value, _ENTRY)
        held = entry.get("value", b"")
        found.setdefault(name, {})[entry["key"]] = base64.b64encode(held).decode() if "bytes" in kind else held.decode()
