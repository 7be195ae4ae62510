"""What the doctor found: lines for a person, and whether all was well."""

from __future__ import annotations

from collections.abc import Callable


class Findings:
    """Lines for a person, and whether all was well."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self._say = say
        self.well = True

    def ok(self, what: str, detail: str) -> None:
        """Something that works, or a plain fact."""
        self._say(f"  ok    {what}: {detail}")

    def note(self, what: str, detail: str) -> None:
        """Works, but not as well as it could."""
        self._say(f"  note  {what}: {detail}")

    def fail(self, what: str, detail: str) -> None:
        """Something that does not work."""
        self.well = False
        self._say(f"  FAIL  {what}: {detail}")
