"""Why requests were refused or failed: counted by reason, with the words of the first of each."""

from __future__ import annotations

import re
from dataclasses import dataclass

from contracts.errors import ErrorInfo
from simulator.report import Refusal

MOST_REASONS = 64
"""What comes beyond is counted as one more reason."""
_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_UNKNOWN = ErrorInfo(status=0, code="unknown", message="no reason was given")
_OTHERS = "other reasons"


@dataclass(slots=True)
class _Counted:
    status: int
    first: str
    count: int = 0


class Refusals:
    """Reasons that differ in their numbers only are one."""

    def __init__(self) -> None:
        self._by_reason: dict[tuple[int, str], _Counted] = {}

    def add(self, error: ErrorInfo | None) -> None:
        """One more request."""
        told = error or _UNKNOWN
        self._count(told.status, told.message, 1)

    def take(self, other: Refusals) -> None:
        """What another one counted too."""
        for counted in other._by_reason.values():
            self._count(counted.status, counted.first, counted.count)

    def report(self) -> tuple[Refusal, ...]:
        """The most frequent first."""
        counted = sorted(self._by_reason.values(), key=lambda one: (-one.count, one.status, one.first))
        return tuple(Refusal(status=one.status, count=one.count, reason=one.first) for one in counted)

    def _count(self, status: int, message: str, count: int) -> None:
        reason = status, _NUMBER.sub("N", message)
        if reason not in self._by_reason and len(self._by_reason) >= MOST_REASONS:
            reason, message = (status, _OTHERS), _OTHERS
        self._by_reason.setdefault(reason, _Counted(status, message)).count += count
