"""Reading one JSON file of a model directory, with errors that name the file."""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import msgspec

from contracts.errors import ModelError

T = TypeVar("T")


def read_json(path: Path, shape: type[T]) -> T:
    """The file's content as `shape`. Raises `ModelError` (missing, unreadable, not JSON, wrong field type)."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=shape)
    except FileNotFoundError:
        raise ModelError(f"{path}: the file is missing") from None
    except OSError as error:
        raise ModelError(f"{path}: cannot be read: {error.strerror}") from error
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: {error}") from error


def read_optional_object(path: Path) -> dict[str, Any]:
    """The file's JSON object, empty when there is no such file. Raises `ModelError` when it is not a JSON object."""
    return read_json(path, dict[str, Any]) if path.exists() else {}
