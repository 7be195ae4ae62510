"""What a client may ask about where and how its request runs: the `phaseserve` object of a body."""

from __future__ import annotations

from typing import get_args

from contracts.cluster_io import OnUnavailable
from contracts.errors import InvalidRequest
from contracts.phase import Layout
from router.client_text import clip
from router.openai_schema import Extension

AUTO = "auto"
_ON_UNAVAILABLE: tuple[OnUnavailable, ...] = get_args(OnUnavailable)


def wished_layout(extension: Extension | None) -> Layout | None:
    """None leaves it to the deployment. Raises `InvalidRequest` naming the field."""
    if extension is None or extension.layout is None or extension.layout == AUTO:
        return None
    try:
        return Layout(extension.layout)
    except ValueError:
        raise _not_one_of("layout", extension.layout, (AUTO, *Layout)) from None


def wished_on_unavailable(extension: Extension | None) -> OnUnavailable | None:
    """None leaves it to the deployment. Raises `InvalidRequest` naming the field."""
    if extension is None or extension.on_unavailable is None:
        return None
    for known in _ON_UNAVAILABLE:
        if extension.on_unavailable == known:
            return known
    raise _not_one_of("on_unavailable", extension.on_unavailable, _ON_UNAVAILABLE)


def _not_one_of(name: str, value: str, known: tuple[str, ...]) -> InvalidRequest:
    where = f"phaseserve.{name}"
    return InvalidRequest(f"{where}: {clip(value)!r} is not one of {', '.join(known)}", param=where)
