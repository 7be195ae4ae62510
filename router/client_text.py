"""What a client sent, as an answer, a log or a header may show it again."""

from __future__ import annotations

SHOWN_CHARS = 128


def clip(value: object) -> str:
    """At most `SHOWN_CHARS` characters and an ellipsis, always encodable: JSON allows half a surrogate pair."""
    text = value if isinstance(value, str) else repr(value)
    shown = text[:SHOWN_CHARS].encode(errors="replace").decode()
    return shown if len(text) <= SHOWN_CHARS else shown + "…"
