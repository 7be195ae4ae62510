"""Files of numbers that say where each number is from: `bytes = { value = 48e9, source = "data sheet" }`.

Packaged ones are known by name; a user's own by path (it ends with `.toml`), where a bare number will do.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contracts.errors import ConfigError

SUFFIX = ".toml"
T = TypeVar("T")


def known(folder: Path) -> list[str]:
    """The names of the packaged files of a kind."""
    return sorted(path.stem for path in folder.glob(f"*{SUFFIX}"))


def read_numbers(folder: Path, name: str, what: str) -> tuple[dict[str, Any], dict[str, str]]:
    """The values of a file, and the source of each by its dotted name. `what` is it that the file describes.

    Raises `ConfigError`: no such name, a file that cannot be read, a value without its source's words.
    """
    path = Path(name) if name.endswith(SUFFIX) else folder / f"{name.lower()}{SUFFIX}"
    if not name.endswith(SUFFIX) and name.lower() not in known(folder):
        raise ConfigError(f"there is no {what} {name!r}; there are {', '.join(known(folder))}, or a .toml", param=what)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{what} {name}: {error.strerror}", param=what) from error
    except (ValueError, RecursionError) as error:  # not TOML, not text, no path, a number without end
        raise ConfigError(f"{what} {name}: {error}", param=what) from error
    sources: dict[str, str] = {}
    return _values(tables, "", sources, f"{what} {name}"), sources


def convert(values: dict[str, Any], kind: type[T], what: str, name: str) -> T:
    """The values as a `kind`. Raises `ConfigError` that names the file and the field."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{what} {name}: {error}", param=what) from error


def _values(table: dict[str, Any], prefix: str, sources: dict[str, str], where: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(value, dict):
            found[key] = value
        elif "value" not in value:
            found[key] = _values(value, f"{prefix}{key}.", sources, where)
        else:
            source = value.get("source", "")
            if not isinstance(source, str) or set(value) - {"value", "source"}:
                raise ConfigError(f"{where}: {prefix}{key} is to be {{ value = ..., source = '...' }}", param=key)
            found[key] = value["value"]
            sources[prefix + key] = source
    return found
