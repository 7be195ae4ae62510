"""A request body in bytes to a checked body, or an error that names the field and what was expected of it."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from contracts.errors import InvalidRequest
from router.client_text import clip
from router.openai_schema import HARMLESS

_Body = TypeVar("_Body", bound=msgspec.Struct)
_PATH = re.compile(r" - at `\$\.?(.*)`\Z")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*?)`", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(.*?)`")


def parse_body(body: bytes, kind: type[_Body]) -> _Body:
    """Raises `InvalidRequest` naming the field for anything that `kind` does not allow."""
    fields = {name: value for name, value in _decode(body).items() if value is not None}
    for name in fields.keys() & HARMLESS.keys():
        if fields[name] not in HARMLESS[name]:
            raise InvalidRequest(f"{name} is not supported by this server", param=name)
        del fields[name]
    try:
        return msgspec.convert(fields, kind, strict=True)
    except msgspec.ValidationError as error:
        raise _named(str(error)) from error


def _decode(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.json.decode(body, type=dict[str, Any])
    except RecursionError as error:
        raise InvalidRequest("the body is nested too deeply") from error
    except msgspec.ValidationError as error:
        raise _not_finite(body) or InvalidRequest(f"the body must be a JSON object: {error}") from error
    except msgspec.DecodeError as error:
        raise _not_finite(body) or InvalidRequest(f"the body is not valid JSON: {error}") from error


def _named(message: str) -> InvalidRequest:
    """msgspec's sentence with its path turned into `param`."""
    path = _PATH.search(message)
    where = path[1].removesuffix("[...]") if path else ""  # msgspec's word for some value of a map
    text = message[: path.start()] if path else message
    if unknown := _UNKNOWN.match(text):
        name = _inside(where, unknown[1])
        return InvalidRequest(f"unsupported parameter: {name}", param=name)
    if missing := _MISSING.match(text):
        name = _inside(where, missing[1])
        return InvalidRequest(f"missing required parameter: {name}", param=name)
    told = clip(text)  # it may repeat a value, however long
    return InvalidRequest(f"{where}: {told[0].lower()}{told[1:]}", param=where or None)


def _not_finite(body: bytes) -> InvalidRequest | None:
    """NaN and Infinity are not JSON, yet clients send them: name the field that holds one, if that is what is wrong."""
    try:
        path = next(_non_finite_paths(json.loads(body), ""), None)
    except (ValueError, RecursionError):
        return None
    if path is None:
        return None
    return InvalidRequest(f"{path}: expected a finite number", param=path)


def _non_finite_paths(value: Any, path: str) -> Iterator[str]:
    if isinstance(value, float) and not math.isfinite(value):
        yield path
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _non_finite_paths(item, _inside(path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _non_finite_paths(item, clip(f"{path}[{index}]"))


def _inside(path: str, name: str) -> str:
    """The path of a field; clipped at every step, since it is built for every value of the body."""
    return clip(f"{path}.{clip(name)}" if path else name)
