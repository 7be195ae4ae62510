"""A chunk of a stream whose text alone is new, as bytes around that text."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

_encode = msgspec.json.Encoder().encode
_MARK = "\0"


class ChunkFrame:
    """`frame(text)` equals `event_of(text)`, at the cost of encoding the text. Only the text may differ from one event
    to the next; `event_of` writes it as a JSON string of its own, after everything else that could be that string."""

    __slots__ = ("_after", "_before")

    def __init__(self, event_of: Callable[[str], bytes]) -> None:
        self._before, found, self._after = event_of(_MARK).rpartition(_encode(_MARK))
        assert found

    def __call__(self, text: str) -> bytes:
        """One event."""
        return self._before + _encode(text) + self._after
