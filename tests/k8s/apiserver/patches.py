"""The four kinds of patch: merge (RFC 7386), strategic merge, JSON patch (RFC 6902), and apply as a strategic merge."""

from __future__ import annotations

import copy
from typing import Any

from tests.k8s.apiserver.answers import Refusal

MERGE_KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "conditions": "type",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
}
"""By which field the items of these lists are told apart in a strategic merge; lists not named here are replaced."""


def merged(target: Any, patch: Any, strategic: bool = False) -> Any:
    """The target with the patch on it; `None` takes a field away."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for name, value in patch.items():
        if strategic and name.startswith("$"):
            continue
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            gone = strategic and value.get("$patch") == "delete"
            result[name] = {} if gone else merged(result.get(name), value, strategic)
        elif (
            strategic and isinstance(value, list) and isinstance(result.get(name), list) and (key := _key(name, value))
        ):
            result[name] = _merged_items(result[name], value, key)
        else:
            result[name] = copy.deepcopy(value)
    return result


def _key(name: str, items: list[Any]) -> str | None:
    if name == "ports":
        return "containerPort" if items and "containerPort" in items[0] else "port"
    return MERGE_KEYS.get(name)


def _merged_items(items: list[Any], patch: list[Any], key: str) -> list[Any]:
    result = copy.deepcopy(items)
    for change in patch:
        at = next((index for index, item in enumerate(result) if item.get(key) == change.get(key)), None)
        if change.get("$patch") == "delete":
            result = [item for index, item in enumerate(result) if index != at]
        elif at is None:
            result.append(copy.deepcopy(change))
        else:
            result[at] = merged(result[at], change, True)
    return result


def json_patched(document: Any, operations: list[dict[str, Any]]) -> Any:
    """The document after all operations. Raises `Refusal` 422 where one does not fit."""
    result = copy.deepcopy(document)
    for operation in operations:
        try:
            _perform(result, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise Refusal(422, "the server rejected our request due to an error in our request") from error
    return result


def _perform(document: Any, operation: dict[str, Any]) -> None:
    parts = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].lstrip("/").split("/")]
    place = document
    for part in parts[:-1]:
        place = place[int(part)] if isinstance(place, list) else place[part]
    last: Any = parts[-1]
    if isinstance(place, list):
        last = len(place) if last == "-" else int(last)
    match operation["op"]:
        case "test":
            if place[last] != operation["value"]:
                raise ValueError("the test does not hold")
        case "remove":
            del place[last]
        case "add" if isinstance(place, list):
            place.insert(last, operation["value"])
        case "add":
            place[last] = operation["value"]
        case "replace":
            place[last]
            place[last] = operation["value"]
        case other:
            raise ValueError(f"no operation {other}")
