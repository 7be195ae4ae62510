"""Which phase each replica was in and when: a stretch of a run, for a picture. Off unless asked for."""

from __future__ import annotations

import math
from dataclasses import dataclass

import msgspec

from contracts.errors import ConfigError
from contracts.phase import Phase

MAX_SPANS = 20_000
"""Of each replica; what comes after them is not written down."""
_JOIN_S = 0.002
"""Steps of one phase with no longer pause between them are one span."""


class Span(msgspec.Struct, frozen=True):
    """Steps of one phase, one after the other. Seconds of the run."""

    from_s: float
    until_s: float
    phase: Phase


@dataclass(slots=True)
class _Open:
    from_s: float
    until_s: float
    phase: Phase


class Timeline:
    """Spans of the steps that begin between `from_s` and `until_s`, by replica.

    Where a pipeline has steps in flight at the same time, a span begins where the one before ends.
    Raises `ConfigError` for a stretch that is none.
    """

    def __init__(self, from_s: float = 0.0, until_s: float = math.inf) -> None:
        if not 0.0 <= from_s < until_s:
            raise ConfigError("a timeline must end after it begins, and not begin before 0", param="timeline")
        self.from_s, self.until_s = from_s, until_s
        self.cut = False
        self._spans: dict[str, list[_Open]] = {}

    def ran(self, replica_id: str, at_s: float, duration_s: float, phase: Phase) -> None:
        """A step begins."""
        if not self.from_s <= at_s < self.until_s:
            return
        spans = self._spans.setdefault(replica_id, [])
        end_s = at_s + duration_s
        if spans:
            last = spans[-1]
            at_s = max(at_s, last.until_s)
            if last.phase is phase and at_s - last.until_s <= _JOIN_S:
                last.until_s = max(end_s, last.until_s)
                return
        if len(spans) >= MAX_SPANS:
            self.cut = True
        elif end_s > at_s:
            spans.append(_Open(at_s, end_s, phase))

    def spans(self) -> dict[str, tuple[Span, ...]]:
        """What was seen, by replica, in order of name and number."""
        return {
            replica_id: tuple(Span(span.from_s, span.until_s, span.phase) for span in self._spans[replica_id])
            for replica_id in sorted(self._spans, key=_by_number)
        }


def _by_number(replica_id: str) -> tuple[str, int]:
    name, _, number = replica_id.rpartition("-")
    return (name, int(number)) if number.isdigit() else (replica_id, 0)
