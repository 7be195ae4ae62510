"""Whether a figure of ours agrees with the paper's, by a rule that is the same for all.

Within `NEAR` of the paper's figure it agrees; else, on the same side of "no gain" or "no change", it has the same sign
only; else it does not agree. A goodput that is only known to be as high as the highest rate scanned makes a gain a
bound: what lies beyond it is undecided.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum

import msgspec

from experiments.ecoserve.scan import Found

NEAR = 0.15
"""Of the paper's figure; a gain's or a change's."""


class Verdict(Enum):
    """In the words of the document."""

    AGREES = "agrees"
    SIGN = "same sign only"
    NOT = "**does not agree**"
    UNDECIDED = "undecided"


class Bound(Enum):
    """What a figure says where a scan ended before the goodput was found."""

    EXACT = ""
    LEAST = "at least "
    MOST = "at most "
    UNKNOWN = "open-ended "


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """A gain or a change, the mean over `count` set-ups."""

    value: float
    bound: Bound = Bound.EXACT
    count: int = 1

    def judge(self, printed: float, neutral: float) -> Verdict:
        """Beside the paper's; `neutral` is 1 for a gain, 0 for a change."""
        if self.bound is Bound.UNKNOWN:
            return Verdict.UNDECIDED
        if abs(self.value - printed) <= NEAR * abs(printed):
            return Verdict.AGREES
        same = (self.value - neutral) * (printed - neutral) > 0.0
        beyond = (self.bound is Bound.LEAST and self.value < printed) or (
            self.bound is Bound.MOST and self.value > printed
        )
        if beyond:
            return Verdict.SIGN if same and self.bound is _away(printed, neutral) else Verdict.UNDECIDED
        return Verdict.SIGN if same else Verdict.NOT


def gains(rows: Iterable[Mapping[str, Found]], ours: str, other: str, share: float, clock: int) -> Figure | None:
    """The mean gain over the set-ups in which both have a goodput; None without any."""
    figures = [gain_of(by[ours], by[other], share, clock) for by in rows if ours in by and other in by]
    return mean_of([one for one in figures if one is not None])


def gain_of(ours: Found, other: Found, share: float, clock: int) -> Figure | None:
    """Ours over the other's."""
    (mine, mine_open), (theirs, theirs_open) = ours.goodput(share, clock), other.goodput(share, clock)
    if not (mine and theirs):
        return None
    return Figure(value=mine / theirs, bound=_bound(mine_open, theirs_open))


def change_of(before: Found, after: Found, share: float, clock: int) -> Figure | None:
    """From one goodput to the other, as a part of the first; None where it has none to lose."""
    (old, old_open), (new, new_open) = before.goodput(share, clock), after.goodput(share, clock)
    return Figure(value=new / old - 1.0, bound=_bound(new_open, old_open)) if old else None


def mean_of(figures: Sequence[Figure]) -> Figure | None:
    """None of none."""
    if not figures:
        return None
    bounds = {one.bound for one in figures} - {Bound.EXACT}
    bound = bounds.pop() if len(bounds) == 1 else Bound.UNKNOWN if bounds else Bound.EXACT
    return Figure(value=sum(one.value for one in figures) / len(figures), bound=bound, count=len(figures))


def _bound(over: bool, under: bool) -> Bound:
    if over:
        return Bound.UNKNOWN if under else Bound.LEAST
    return Bound.MOST if under else Bound.EXACT


def _away(printed: float, neutral: float) -> Bound:
    """The bound of a figure that can only be further on the paper's side of `neutral`."""
    return Bound.LEAST if printed > neutral else Bound.MOST
