"""Settings as text: a TOML file, `--set a.b=value` on top, checked as a whole against the frozen configs."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contracts.errors import ConfigError

T = TypeVar("T")


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a file. Raises `ConfigError` naming file and line."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", param="--config") from error
    except (ValueError, RecursionError) as error:  # not TOML, not text, no path, a number without end
        raise ConfigError(f"{path}: {error}", param="--config") from error


def parse_assignment(text: str) -> dict[str, Any]:
    """`a.b=value` as nested tables. The value is read as TOML; what is not TOML is taken as a string."""
    key, equals, raw = text.partition("=")
    names = [name.strip() for name in key.split(".")]
    if not equals or not all(names):
        raise ConfigError(f"--set {text!r} is not of the form section.name=value", param="--set")
    try:
        value = tomllib.loads(f"value = {raw}")["value"]
    except (ValueError, RecursionError):
        value = raw.strip()
    for name in reversed(names):
        value = {name: value}
    result: dict[str, Any] = value
    return result


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """`over` laid on `base`, table by table."""
    merged = dict(base)
    for name, value in over.items():
        below = merged.get(name)
        merged[name] = merge(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return merged


def build(kind: type[T], layers: Iterable[dict[str, Any]]) -> T:
    """The settings that all layers together give. Raises `ConfigError` naming the wrong setting."""
    merged: dict[str, Any] = {}
    for layer in layers:
        merged = merge(merged, layer)
    try:
        return msgspec.convert(merged, kind, str_keys=True)
    except msgspec.ValidationError as error:
        message, _, where = str(error).partition(" - at `$")
        name = where.rstrip("`").lstrip(".")
        raise ConfigError(f"{name or 'settings'}: {message}", param=name or None) from error
